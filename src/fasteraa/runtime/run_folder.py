"""The run folder: what a search leaves behind, written so that a crash at any moment leaves it readable."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fasteraa.errors import ConfigError, RunError
from fasteraa.runtime.documents import read_json, read_text, read_toml
from fasteraa.runtime.files import explain_os_error, sealed, unsealed, write_atomic

_DIGEST = "# sha256 of these settings: "  # the last line of config.toml
_FEW = 1 << 20  # bytes, of a file that holds some lines


class RunFolder:
    """What a search writes, by name."""

    def __init__(self, path: Path):
        self.path = path
        self.config = path / "config.toml"
        self.policy = path / "policy.json"  # the answer: replaced only by another answer
        self.result = path / "result.json"
        self.summary = path / "summary.txt"
        self.preview = path / "preview.png"
        self.source = path / "source.json"
        self.broken = path / "broken.jsonl"
        self.candidates = path / "candidates"  # what took part, a policy file each
        self.race = path / "race"  # its schedule and its trainings
        self.scores = path / "scores"  # of a race by somebody's own training, a folder for each run
        self.methods = path / "methods"  # what each keeps for itself

    def of_method(self, name: str) -> Path:
        """The folder of a method's own files; it is the method that makes it."""
        return self.methods / name

    def open_new(self) -> None:
        """Make the folder and see that it can be written, before any work is done."""
        self._check_is_folder()
        if self.config.exists():
            raise RunError(
                f"the folder {str(self.path)!r} holds a run already: add resume=True to continue it, or choose another"
            )
        if self.scores.exists():
            raise RunError(
                f"the folder {str(self.path)!r} holds a race by a command or function: choose another (--out)"
            )
        if left := [each.name for each in (self.policy, self.methods) if each.exists()]:
            raise RunError(
                f"the folder {str(self.path)!r} holds {left[0]}, which the search would overwrite: choose another "
                "(--out)"
            )
        with explain_os_error(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomic(self.summary, "the search has not ended yet\n")
            self.summary.unlink()

    def open_scores(self) -> None:
        """For a race by somebody's own training, which resumes where there is one."""
        self._check_is_folder()
        if self.config.exists() or self.methods.exists():
            raise RunError(f"the folder {str(self.path)!r} holds a search or a race on images: choose another (--out)")
        with explain_os_error(self.path):
            self.scores.mkdir(parents=True, exist_ok=True)

    def _check_is_folder(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"a run needs a folder, {str(self.path)!r} is a file: choose another (--out)")

    def keep_source(self, source: Any, **flags: str | Path | float | None) -> None:
        """What was asked for beside the settings, so that it can be asked for again; a Python object has no name."""
        if source is None or isinstance(source, str | Path):
            given = {name: str(value) for name, value in flags.items() if value is not None}
            write_atomic(self.source, json.dumps(sealed({"source": source and str(source), **given})) + "\n")

    def keep_broken(self, broken: Sequence[Any], say: Callable[[str], None]) -> None:
        """Images that could not be read (each with its `path` and the `reason`), if there are any."""
        if broken:
            say(f"{len(broken)} images could not be read: see {str(self.broken)!r}")
            lines = (json.dumps({"path": each.path, "reason": each.reason}) + "\n" for each in broken)
            write_atomic(self.broken, "".join(lines))

    @contextmanager
    def removed_if_empty(self) -> Iterator[None]:
        """A start that fails before it writes anything leaves no folder that was not there."""
        made = [each for each in (self.scores, self.path, *self.path.parents) if not os.path.exists(each)]
        try:
            yield
        except BaseException:
            for each in made:
                with suppress(OSError):
                    each.rmdir()
            raise

    @contextmanager
    def restored_if_refused(self) -> Iterator[None]:
        """What is written before a run is known to fit the folder is as it was if it does not."""
        before = {file: file.read_bytes() if file.exists() else None for file in (self.config, self.broken)}
        try:
            yield
        except (RunError, ConfigError):
            for file, content in before.items():
                if content is None:
                    file.unlink(missing_ok=True)
                elif file.read_bytes() != content:
                    write_atomic(file, content)
            raise

    def asked_for(self) -> dict[str, str | None]:
        """What `keep_source` wrote; empty if there is nothing, or something else."""
        try:
            content = unsealed(read_json(self.source, most=_FEW))
        except (RunError, ValueError):
            return {}
        return {name: value for name, value in content.items() if value is None or isinstance(value, str)}

    # --- settings ------------------------------------------------------------------------------------------------

    def write_config(self, text: str) -> None:
        """config.toml, with a digest of its values: a line that is lost later must not be taken for a default."""
        content = f"{text}\n{_DIGEST}{_digest_of(tomllib.loads(text))}\n"
        if not self.config.exists() or read_text(self.config, ConfigError) != content:
            write_atomic(self.config, content)

    def check_old(self) -> None:
        """There must be a run to resume, with the settings it was begun with."""
        self._check_is_folder()
        if not self.config.exists():
            raise RunError(f"the folder {str(self.path)!r} holds no run to resume; leave out resume=True to start one")
        tables, digests = read_toml(self.config), self._digests()
        if not digests and "run" not in tables:  # it wrote the settings of its search alone
            raise RunError(
                f"the run in {str(self.path)!r} is of version 0.1, which this version cannot resume, or lines of its "
                "config.toml are lost: restore the file, or start another run (--out)"
            )
        self.check_settings(tables)

    def _digests(self) -> list[str]:
        lines = read_text(self.config, ConfigError).splitlines()
        return [line.removeprefix(_DIGEST).strip() for line in lines if line.startswith(_DIGEST)]

    def check_settings(self, tables: Mapping[str, Any]) -> None:
        """What config.toml holds must be what `write_config` wrote."""
        if self._digests() != [_digest_of(tables)]:
            raise RunError(
                f"the settings in {str(self.config)!r} are not those that the run was begun with (they were edited, or "
                "lines are lost): restore the file, or start another run (--out)"
            )


def _digest_of(tables: Mapping[str, Any]) -> str:
    """Of values alone: comments may be added."""
    return hashlib.sha256(json.dumps(tables, sort_keys=True, default=str).encode()).hexdigest()
