"""The folder that tasks fill: what it holds, what is finished, what was broken."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from fasteraa._version import __version__
from fasteraa.data.materialize import allowed_broken, check_budget
from fasteraa.data.source import Broken, Listing
from fasteraa.errors import DataError, RunError
from fasteraa.offline.job import RECORDS, ApplyJob, ShardTask, class_folders, images_of, tasks_of
from fasteraa.offline.writers import is_whole, part_of
from fasteraa.runtime.clock import duration
from fasteraa.runtime.documents import cut, read_json
from fasteraa.runtime.files import explain_os_error, replacing, sealed, unsealed

MANIFEST = "apply.json"
_WORDS = {"images": "number of images", "copies": "number of copies", "name": "source"}  # of the manifest, in a message
_EVERY_S = 10.0  # between two lines of progress
Say = Callable[[str], None]
Execute = Callable[[ApplyJob, Sequence[ShardTask]], Generator[ShardTask, None, None]]  # tasks as they are done


@dataclass(frozen=True)
class Applied:
    """What was made."""

    folder: Path
    images: int  # of the source
    samples: int  # augmented images
    broken: tuple[Broken, ...]

    def words(self) -> str:
        left = f", {len(self.broken)} broken images left out" if self.broken else ""
        return f"{self.samples:,} augmented images of {self.images:,} in {str(self.folder)!r}{left}"


def run_job(job: ApplyJob, about: Mapping[str, Any], execute: Execute, broken_budget: float, say: Say) -> Applied:
    """All tasks that are not finished yet. `about` says which images they are, for the manifest."""
    listing = images_of(job)
    if job.format == "folder" and listing.pair is None:
        class_folders(listing)
    manifest = {"source": dict(about), "settings": job.settings()}
    versions = _open(job, manifest)
    tasks = tasks_of(job, len(listing))
    records = dict(_intact(tasks, say))
    waiting = [task for task in tasks if task not in records]
    if waiting:
        _check_versions(versions, job.folder)
    progress = _Progress(job, len(listing), len(tasks) - len(waiting), say)
    allowed = allowed_broken(len(listing), broken_budget)
    _check(records, allowed, listing, about)
    with closing(execute(job, waiting)) as finished:
        for task in finished:
            if (record := _record(task)) is None:
                raise RunError(f"{str(task.record)!r} was written, and is lost or damaged: give the same command again")
            records[task] = {**record, "files": {}}  # a digest of each file: a set in folders has millions
            if record["broken"]:
                _check(records, allowed, listing, about)
            progress.done()
    return _close(job, {**manifest, "versions": versions}, listing, records)


# --- the folder ------------------------------------------------------------------------------------------------------


def _open(job: ApplyJob, manifest: dict[str, Any]) -> dict[str, str]:
    """Begin, or continue what was begun with the same settings; the versions that it was begun with."""
    file = job.folder / MANIFEST
    if file.exists():
        try:
            before = unsealed(read_json(file))
        except (RunError, ValueError) as error:
            if isinstance(error.__cause__, OSError):
                raise
            raise RunError(
                f"{str(file)!r} is damaged, so what the folder holds is not known ({cut(error)}): choose another "
                "folder (--out)"
            ) from error
        _check_same(before, manifest, job.folder)
        versions = before.get("versions")
        return versions if isinstance(versions, dict) else _versions()
    versions = _versions()
    _write_manifest(job.folder, {**manifest, "versions": versions})
    return versions


def _check_same(before: Any, now: Mapping[str, Any], folder: Path) -> None:
    parts: dict[str, dict[str, Any]] = before if isinstance(before, dict) else {}
    for part in ("settings", "source"):
        old = parts.get(part) or {}
        for name, value in json.loads(json.dumps(now[part])).items():
            if old.get(name) != value:
                raise RunError(
                    f"the folder {str(folder)!r} was begun with another {_WORDS.get(name, name.replace('_', ' '))} "
                    f"({cut(old.get(name), 80)}, not {cut(value, 80)}): choose another folder (--out), or give the "
                    "command that it was begun with"
                )


def _versions() -> dict[str, str]:
    """Of what pixels and files depend on."""
    return {"fasteraa": __version__, **{name: metadata.version(name) for name in ("torch", "pillow")}}


def _check_versions(before: Mapping[str, str], folder: Path) -> None:
    for name, version in _versions().items():
        if before.get(name, version) != version:
            raise RunError(
                f"the folder {str(folder)!r} was begun with {name} {cut(before[name], 40)}, here is {version}, "
                "which may make other pixels: choose another folder (--out), or install that version"
            )


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    _write(folder / MANIFEST, json.dumps(sealed({"what": "fasteraa apply", **manifest}), indent=1) + "\n")


def _write(file: Path, text: str) -> None:
    with replacing(file, partial=part_of(file)) as partial:
        partial.write_text(text, encoding="utf-8")


def _intact(tasks: Sequence[ShardTask], say: Say) -> Iterator[tuple[ShardTask, dict[str, Any]]]:
    """Tasks that are finished, and whose files are still what was written; all others are made again."""
    said_at = time.monotonic()
    for number, task in enumerate(tasks):
        if time.monotonic() - said_at >= _EVERY_S:
            said_at = time.monotonic()
            say(f"checking what is finished: {number:,} of {len(tasks):,} parts")
        record = _record(task)
        if record is not None and all(
            is_whole(task.job.folder / name, record["files"][name]) for name in record["files"]
        ):
            yield task, {**record, "files": {}}


def _record(task: ShardTask) -> dict[str, Any] | None:
    """Of a task that is finished: how many images it wrote, which were broken, and a digest of each file."""
    if not task.record.exists():
        return None
    try:
        content = unsealed(read_json(task.record), needed=True)
        broken = [Broken(*pair) for pair in content["broken"]]
        return {"samples": int(content["samples"]), "broken": broken, "files": dict(content["files"])}
    except (RunError, TypeError, KeyError, ValueError):  # damaged: it is made again
        return None


def _check(
    records: Mapping[ShardTask, dict[str, Any]], allowed: int, listing: Listing, about: Mapping[str, Any]
) -> None:
    """More broken images than the budget allows end it. Their shards are made again once they are fixed."""
    broken = [*listing.damage, *(each for record in records.values() for each in record["broken"])]
    try:
        check_budget(broken, allowed, len(listing), about["name"])
    except DataError:
        for task, record in records.items():
            if record["broken"]:
                task.record.unlink(missing_ok=True)
        raise


def _close(
    job: ApplyJob, manifest: dict[str, Any], listing: Listing, records: Mapping[ShardTask, dict[str, Any]]
) -> Applied:
    ordered = [records[task] for task in sorted(records, key=lambda task: task.number)]
    broken = (*listing.damage, *(each for record in ordered for each in record["broken"]))
    made = {"samples": sum(record["samples"] for record in ordered), "tasks": len(ordered), "broken": len(broken)}
    lines = [json.dumps({"path": each.path, "reason": each.reason}) + "\n" for each in broken]
    if lines:
        _write(job.folder / "broken.jsonl", "".join(lines))
    names = listing.classes if listing.pair is None else listing.mask_names
    if names and (job.format == "shards" or listing.pair is not None):  # else folders have the names
        _write(job.folder / "classes.txt", "".join(f"{name}\n" for name in names))
    _write_manifest(job.folder, {**manifest, "made": made})
    return Applied(job.folder, len(listing), made["samples"], broken)


class _Progress:
    def __init__(self, job: ApplyJob, count: int, finished: int, say: Say):
        self.each, self.count, self.copies, self.say = job.images_each, count, job.copies, say
        self.finished = self.before = finished
        self.began = self.said = time.monotonic()
        if finished:
            self.say(f"{self._images():,} of {count:,} images are finished already")

    def _images(self) -> int:
        return min(self.count, self.finished * self.each)

    def done(self) -> None:
        self.finished += 1
        now = time.monotonic()
        if now - self.said < _EVERY_S or self._images() == self.count:
            return
        self.said = now
        speed = (self.finished - self.before) * self.each / (now - self.began)
        left = (self.count - self._images()) / speed
        self.say(
            f"{self._images():,} of {self.count:,} images, {speed * self.copies:,.0f} augmented a second, "
            f"{duration(left)} left"
        )


def make_folder(folder: Path) -> None:
    """See that it can be written, before any work is done. A folder with something else in it is left as it is."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"images are written to a folder, {str(folder)!r} is a file: choose another (--out)")
    with explain_os_error(folder):
        names = {entry.name for entry in os.scandir(folder)} if folder.exists() else set()
        others = sorted(name for name in names if not name.startswith(".") and name != part_of(folder / MANIFEST).name)
        if others and MANIFEST not in names:
            raise RunError(
                f"the folder {str(folder)!r} holds {others[0]!r}, which fasteraa apply did not write: choose an empty "
                "one (--out)"
            )
        (folder / RECORDS).mkdir(parents=True, exist_ok=True)
