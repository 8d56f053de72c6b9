"""The searches that a folder holds, found by their images and settings.

A search has a folder of its own, searches/NAME, as `fasteraa.search` leaves one: faster-aa.json is what the gradient
search found, policy.json the answer, which is the race's where there was one. Lines with and without a race share it.
Those of a folder may also be packed in one file, searches.json.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from fasteraa.data import ImageSet, load, stratify
from fasteraa.errors import ConfigError, DataError
from fasteraa.methods.config import SearchConfig, make_config
from fasteraa.methods.faster_aa.files import GradientFiles
from fasteraa.policy.named import named
from fasteraa.policy.policy import Policy
from fasteraa.reproduce.schema import Search
from fasteraa.reproduce.setting import Setting
from fasteraa.reproduce.smoke import quick_search
from fasteraa.runtime.documents import read_json, read_text
from fasteraa.runtime.files import write_atomic
from fasteraa.runtime.run_folder import RunFolder

SEARCHES, PACKED = "searches", "searches.json"
_Images = tuple[str, int | None, int | None, int | None]  # of a named set: images, classes, size


class SearchStore:
    """Searches by seed, whatever table asks for them."""

    def __init__(self, setting: Setting):
        self.setting = setting
        self.missing: dict[str, str] = {}  # named set, or searches on it -> why it is not there
        self._fingerprints: dict[_Images, str | None] = {}  # None where the images are not there

    # --- finding them ----------------------------------------------------------------------------------------------

    def policies(self, policy: str | Search) -> dict[int, Policy]:
        """One for every seed; searches that were not made yet are left out."""
        seeds = range(self.setting.seeds)
        if policy == "random":
            return {seed: named("random", seed=seed) for seed in seeds}
        if isinstance(policy, str):
            return dict.fromkeys(seeds, named(policy))
        if self._fingerprint(policy) is None:
            return {}
        searched = {seed: self.read(policy, seed) for seed in self.seeds(policy)}
        if not policy.per_seed:
            searched = dict.fromkeys(seeds, searched[0])
        return {seed: sample_sub_policies(each, policy.keep, seed) for seed, each in searched.items() if each}

    def seeds(self, search: Search) -> range:
        """Of the searches to make."""
        return range(self.setting.seeds if search.per_seed else 1)

    def differences(self, search: Search) -> list[str]:
        """How the images that were searched on differ from those of the table, as far as their numbers show."""
        if self.setting.quick:
            return []
        searched = [policy.provenance["data"] for policy in self.policies(search).values()]
        counts = (("images", search.planned), ("classes", search.classes))
        return [
            f"searched on {count} {what}, not on {planned}"
            for what, planned in counts
            for count in sorted({data[what] for data in searched} - {planned})
            if planned is not None
        ]

    def lacks_images(self, search: Search) -> bool:
        return self._image_fingerprint(search) is None

    def is_ambiguous(self, search: Search) -> bool:
        """There are several, and without the images nobody knows which is meant."""
        return self.lacks_images(search) and len(self._stored_fingerprints(search)) > 1

    def read(self, search: Search, seed: int) -> Policy | None:
        if search.budgeted:  # the end of its time may have come first: that is part of it
            return self._read(self.folder(search, seed).name).policy
        record = self._read(self.folder(search, seed).name)
        if not search.race_minutes:
            return _finished(record.gradient or record.policy)
        policy = _finished(record.policy)
        return policy if policy and {"race", "calibration"} & policy.provenance.keys() else None  # 0.1: calibration

    def folder(self, search: Search, seed: int) -> Path:
        fingerprint = self._fingerprint(search)
        assert fingerprint is not None, "nothing is searched or found without images"
        return self.setting.out / SEARCHES / search_name(search, self.config(search, seed), fingerprint)

    def _read(self, name: str) -> StoredSearch:
        folder = self.setting.out / SEARCHES / name
        return StoredSearch.of(folder) if folder.is_dir() else self._packed.get(name, StoredSearch())

    @cached_property
    def _packed(self) -> dict[str, StoredSearch]:
        return read_packed(self.setting.out / PACKED)

    def config(self, search: Search, seed: int) -> SearchConfig:
        settings = {**search.settings, "seed": seed}
        return make_config(quick_search(settings) if self.setting.quick else settings)

    # --- by their images -------------------------------------------------------------------------------------------

    def _fingerprint(self, search: Search) -> str | None:
        """Of its images or, where they are not there, of those that its searches keep, if these are the same."""
        fingerprint = self._image_fingerprint(search)
        fingerprints = set() if fingerprint else self._stored_fingerprints(search)
        if len(fingerprints) > 1:
            self.missing[f"searches on {search.source}"] = (
                f"there are searches on {len(fingerprints)} sets of images for {search.source}, and without the images "
                "it is unknown which is meant"
            )
        return fingerprints.pop() if len(fingerprints) == 1 else fingerprint

    def _image_fingerprint(self, search: Search) -> str | None:
        """Of its images, which are read for it once; None if they are not there."""
        part = (search.source, search.images, search.classes, search.size)
        if part not in self._fingerprints:
            try:
                self._fingerprints[part] = self.images(search).fingerprint
            except DataError as error:
                self.missing[search.source] = str(error)
                self._fingerprints[part] = None
        return self._fingerprints[part]

    def _stored_fingerprints(self, search: Search) -> set[str]:
        """Those of finished searches whose names were made with them."""
        configs = [self.config(search, seed) for seed in range(self.setting.seeds)]
        return {
            fingerprint
            for name, fingerprint in self._fingerprint_by_name.items()
            if name in {search_name(search, config, fingerprint) for config in configs}
        }

    @cached_property
    def _fingerprint_by_name(self) -> dict[str, str]:
        """Name of a finished search -> fingerprint of the images that it was made on."""
        names = {file.parent.name for file in (self.setting.out / SEARCHES).glob("*/policy.json")}
        records = {name: self._read(name) for name in sorted(names | self._packed.keys())}
        policies = {name: policy for name, each in records.items() if (policy := _finished(each.policy))}
        fingerprints = {name: policy.provenance.get("data", {}).get("fingerprint") for name, policy in policies.items()}
        return {name: fingerprint for name, fingerprint in fingerprints.items() if fingerprint}

    def images(self, search: Search) -> ImageSet:
        setting, name = self.setting, search.source
        return load(
            setting.known_source(name),
            subset=setting.image_count(name, search.images),
            classes=setting.class_count(name, search.classes),
            size=setting.size(search.size),
            data_root=setting.data_root,
        )


def search_name(search: Search, config: SearchConfig, fingerprint: str) -> str:
    """The folder of a search. Its key is what decides the outcome, so tables share searches, wherever images lie."""
    settings = config.plain()
    settings["backbone"] = settings.pop("critic")  # as version 0.1 called it: keys are those of searches made with it
    parts: list[Any] = [fingerprint, settings]
    if search.budgeted:
        parts += [list(search.methods), search.minutes, search.race_minutes]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
    if search.budgeted:
        what = "race" if search.race_minutes else "-".join(search.methods)
        return f"{search.source}-{search.images or 'all'}-{what}-{search.minutes or search.race_minutes:g}min-{key}"
    objective = "" if config.objective == "paper" else f"{config.objective}-"
    size = f"L{config.sub_policies}-K{config.operation_count}"
    return f"{search.source}-{search.images or 'all'}-{objective}{size}-{config.seed}-{key}"


def sample_sub_policies(policy: Policy, count: int | None, seed: int) -> Policy:
    """So many of its sub-policies, drawn by the seed."""
    if count is None or count >= len(policy.sub_policies):
        return policy
    indices = np.sort(stratify.shuffled(len(policy.sub_policies), seed, 0)[:count])
    return replace(policy, sub_policies=tuple(policy.sub_policies[index] for index in indices.tolist()))


# --- keeping them ----------------------------------------------------------------------------------------------------


class StoredSearch(NamedTuple):
    """What a search left behind."""

    policy: Policy | None = None
    gradient: Policy | None = None  # of the gradient search, where a race chose
    config: str = ""  # its config.toml

    @classmethod
    def of(cls, folder: Path) -> Self:
        run, gradient = RunFolder(folder), GradientFiles.to_read(folder).policy
        return cls(
            policy=Policy.load(run.policy) if run.policy.exists() else None,
            gradient=Policy.load(gradient) if gradient.exists() else None,
            config=read_text(run.config, ConfigError) if run.config.exists() else "",
        )


def pack(out: Path) -> None:
    """The searches of a folder, in searches.json instead of in folders of their own: a line each."""
    folders = sorted(folder for folder in (out / SEARCHES).iterdir() if folder.is_dir())
    lines = [f"{json.dumps(folder.name)}: {json.dumps(_content(folder))}" for folder in folders]
    write_atomic(out / PACKED, "{\n" + ",\n".join(lines) + "\n}\n")


def _content(folder: Path) -> dict[str, Any]:
    """As it is in the files."""
    files = {"policy": RunFolder(folder).policy, "gradient": GradientFiles.to_read(folder).policy}
    return {part: read_json(file) for part, file in files.items() if file.exists()} | {
        "config": StoredSearch.of(folder).config
    }


def read_packed(file: Path) -> dict[str, StoredSearch]:
    """Empty if there is no file."""
    content = read_json(file) if file.exists() else {}
    if not isinstance(content, dict) or not all(isinstance(each, dict) for each in content.values()):
        raise DataError(f"{str(file)!r} must hold an object for each search")

    def policy(part: Any) -> Policy | None:
        return None if part is None else Policy.from_json(json.dumps(part))

    return {
        name: StoredSearch(policy(each.get("policy")), policy(each.get("gradient")), str(each.get("config", "")))
        for name, each in content.items()
    }


def _finished(policy: Policy | None) -> Policy | None:
    """One that was searched to the end."""
    return policy if policy is not None and policy.provenance.get("finished") else None
