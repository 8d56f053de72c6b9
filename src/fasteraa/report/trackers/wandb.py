"""Weights & Biases: online for those who are logged in, otherwise an offline run in the folder, to be sent later."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

import wandb

from fasteraa.report.trackers.tracking import Ending, Opening

_EXIT_CODES = {"finished": 0, "stopped": 130, "failed": 1}


class WandB:
    """WANDB_MODE, WANDB_PROJECT and the other variables mean what they mean elsewhere."""

    name = "wandb"

    def __init__(self) -> None:
        self._run: Any = None

    def start(self, opening: Opening) -> str:
        opening.folder.mkdir(parents=True, exist_ok=True)
        earlier = _earlier(opening)
        why = ""
        try:
            self._run = _init(opening, earlier, None)
        except wandb.Error as error:  # nobody is logged in, or the server does not answer
            why = f"{' '.join(str(error).split()).rstrip('.')}: "
            self._run = _init(opening, earlier, "offline")
        if self._run.offline:
            path = self._run.settings.sync_dir
            return f"{why}an offline run; to send it: wandb sync {path}"
        return str(self._run.url or "switched off (WANDB_MODE)")

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def finish(self, ending: Ending) -> None:
        run = self._run
        try:
            run.summary.update(dict(ending.summary))
            for file in ending.files:
                # a copy: left to itself it puts a link there, which breaks when the folder is moved
                copy = shutil.copy(file, run.dir)
                run.save(str(copy), base_path=run.dir, policy="now")
        finally:
            run.finish(exit_code=_EXIT_CODES[ending.status])


def _init(opening: Opening, earlier: str | None, mode: Any) -> Any:
    offline = mode == "offline" or wandb.setup().settings.mode == "offline"
    return wandb.init(
        project=os.environ.get("WANDB_PROJECT", "fasteraa"),
        name=os.environ.get("WANDB_NAME", opening.name),
        job_type=opening.kind,
        dir=str(opening.folder),
        config=opening.settings,
        id=earlier,
        resume="allow" if earlier and not offline else None,
        mode=mode,
        # what a search is made of goes there, and nothing about the machine, its user or what the terminal showed
        settings=wandb.Settings(
            silent=True,
            init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", 30)),  # by itself it waits 90 s for a server
            host="",
            console="off",
            save_code=False,
            disable_git=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        ),
    )


def _earlier(opening: Opening) -> str | None:
    """The id of the run that the folder belongs to: its own folder is called offline-run-DATE-ID or run-DATE-ID."""
    latest = opening.folder / "wandb" / "latest-run"
    return latest.resolve().name.rpartition("-")[2] if opening.resume and latest.exists() else None
