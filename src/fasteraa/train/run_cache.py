"""The cache of finished trainings: a record each, found by the job's key, so nothing runs twice.

A race, a comparison and a table write one file per training while they run. `pack` makes one file of them, for
keeping; both are read. Weights of networks are kept only where a job asks for them, and the state in which a part of a
training ends until whoever asked for the part lets it go.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from fasteraa.errors import RunError
from fasteraa.runtime.documents import cut, read_json
from fasteraa.runtime.files import as_file_name, explain_os_error, sealed, unsealed, write_atomic
from fasteraa.train.job import Outcome, TrainJob

RUNS, PACKED, NETWORKS, STATES = "runs", "runs.json", "networks", "states"
_KEY = "key"  # in a record: of the job that it is of
_LARGEST = 1 << 20  # bytes of a record
_BLOCK = 4096  # bytes, that a disk must have left


class RunCache:
    """Records and checkpoints of trainings in a folder."""

    def __init__(self, folder: Path):
        self.folder, self.runs = folder, folder / RUNS

    def open(self) -> RunCache:
        """Make it and see that it can be written, before any work is done: an empty file fits on a full disk."""
        with explain_os_error(self.folder):
            self.runs.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.runs) as file:
                file.write(bytes(_BLOCK))
        return self

    def file(self, job: TrainJob) -> Path:
        """The name is for people; the key decides: one that is there, or was begun, under another label is that one."""
        file = self.runs / f"{as_file_name(job.label)}-{job.seed}-{job.key}.json"
        if file.exists():
            return file
        files = sorted(self.runs.glob(f"*-{job.key}.json")) or sorted(self.runs.glob(f"*-{job.key}.pt"))
        return files[0].with_suffix(".json") if files else file

    def checkpoint(self, job: TrainJob) -> Path:
        return self.file(job).with_suffix(".pt")

    def network(self, job: TrainJob) -> Path:
        """Where the weights of a trained network are, if the job asked to keep them."""
        folder = self.folder / NETWORKS
        files = sorted(folder.glob(f"*-{job.key}.pt"))
        return files[0] if files else folder / f"{as_file_name(job.label)}-{job.seed}-{job.key}.pt"

    def state(self, key: str) -> Path:
        """Where the part of a training with this key leaves what another part continues."""
        return self.folder / STATES / f"{key}.pt"

    def drop_states(self, keys: Iterable[str]) -> None:
        """Of parts that nothing will continue any more."""
        for key in keys:
            self.state(key).unlink(missing_ok=True)

    def read(self, job: TrainJob) -> Outcome | None:
        """None if it was not run, or if it succeeded and the weights that the job asks for were not kept."""
        outcome = self._read(job)
        lacks = outcome is not None and not outcome.failed and job.keep_network and not self.network(job).exists()
        return None if lacks else outcome

    def _read(self, job: TrainJob) -> Outcome | None:
        file = self.file(job)
        if file.exists():
            return _outcome(file, lambda: _of(job, unsealed(read_json(file, most=_LARGEST))))
        if job.key in self._packed:
            return _outcome(self.folder / PACKED, lambda: _of(job, unsealed(self._packed[job.key])))
        return None

    def write(self, job: TrainJob, record: Mapping[str, Any]) -> None:
        """A record that is there already stays as it is."""
        file = self.file(job)
        if not file.exists():
            write_atomic(file, json.dumps(sealed({**record, _KEY: job.key}), indent=1) + "\n")

    @cached_property
    def _packed(self) -> dict[str, dict[str, Any]]:
        return _read_packed(self.folder / PACKED)


def pack(folder: Path, files: Iterable[Path]) -> None:
    """One file of many records; what was packed before stays."""
    records = {file.stem.rpartition("-")[2]: read_json(file, most=_LARGEST) for file in files}
    content = {**_read_packed(folder / PACKED), **records}
    rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(content[key])}" for key in sorted(content))
    write_atomic(folder / PACKED, f"{{\n{rows}\n}}\n")


def _read_packed(file: Path) -> dict[str, dict[str, Any]]:
    if not file.exists():
        return {}
    try:
        content = read_json(file)
        if not isinstance(content, dict) or not all(isinstance(each, dict) for each in content.values()):
            raise ValueError("it must hold an object of records")
    except (ValueError, RunError) as error:
        raise _damaged("the records", file, error, "remove the file to run them again") from error
    return content


def _of(job: TrainJob, record: dict[str, Any]) -> dict[str, Any]:
    """ValueError for a copy of another training's record; those of earlier versions do not say whose they are."""
    if record.get(_KEY, job.key) != job.key:
        raise ValueError("it is of another training")
    return {name: value for name, value in record.items() if name != _KEY}


def _outcome(file: Path, read: Callable[[], dict[str, Any]]) -> Outcome:
    try:
        return Outcome.of(read())
    except (ValueError, KeyError, TypeError, RunError) as error:
        raise _damaged("the record", file, error, "remove it to run it again") from error


def _damaged(what: str, file: Path, error: Exception, advice: str) -> RunError:
    """A file that may not be read is not damaged."""
    if isinstance(error, RunError) and isinstance(error.__cause__, OSError):
        return error
    why = cut(str(error).removeprefix(repr(str(file))).strip())
    return RunError(f"{what} {str(file)!r} cannot be read ({why}): {advice}")
