"""What a search leaves in its folder: the policy to use, the candidates, the table, the summary and the picture."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from fasteraa.data import ImageSet, load
from fasteraa.data.decode import CPU_SIDE
from fasteraa.errors import FasterAAError
from fasteraa.methods.config import SearchConfig
from fasteraa.policy.policy import Policy
from fasteraa.report.preview import alternating, draw_sheet
from fasteraa.report.summary import summarise
from fasteraa.runtime.documents import plain, printable
from fasteraa.runtime.files import as_file_name, replacing, sealed, write_atomic
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.selection.result import Result
from fasteraa.selection.score_race import ScoreResult

PREVIEW_OF = "policy"  # what a picture has in its file: whose it is
_SHOWN = 64  # images, of which a picture shows some and pairs others


def write_result(
    result: Result, folder: RunFolder, source: Any, config: SearchConfig, data_root: str | Path | None
) -> None:
    """The policy last but one: it is replaced when everything that describes it is there.

    What describes it names it, so that a reader can tell after a kill in between: the picture by its hash, the result
    also by what the hash does not count.
    """
    for candidate in result.candidates:
        candidate.policy.save(folder.candidates / f"{as_file_name(candidate.label)}.json")
    with replacing(folder.preview) as partial:
        images, masks = _shown(result.data, source, config, data_root)
        about = PngInfo()
        about.add_text(PREVIEW_OF, result.policy.hash)
        draw_sheet(result.policy, images, masks=masks).save(partial, pnginfo=about)
    _write_answer(result.policy, result_dict(result), folder)
    write_atomic(folder.summary, printable(summarise(result), keep="\n") + "\n")


def raced_policy(folder: RunFolder) -> Policy | None:
    """The policy of the folder, if a race chose it: only another race may replace it."""
    policy = _old_policy(folder)
    return policy if policy is not None and policy.provenance.get("race") else None


def _old_policy(folder: RunFolder) -> Policy | None:
    try:
        return Policy.load(folder.policy) if folder.policy.exists() else None
    except FasterAAError:
        return None


def _write_answer(policy: Policy, content: Mapping[str, Any], folder: RunFolder) -> None:
    """result.json, then policy.json, which differs from what the result says only after a kill in between.

    Then it is the one `before`, which the hash alone would not tell if both do the same to images.
    """
    old, about = _old_policy(folder), about_digest(policy)
    replaced = old is not None and old.hash == policy.hash and about_digest(old) != about
    digests = {"about": about, **({"before": about_digest(old)} if old is not None and replaced else {})}
    write_atomic(folder.result, json.dumps(sealed({**content, **digests}), indent=1) + "\n")
    policy.save(folder.policy)


def write_scores(result: ScoreResult, folder: RunFolder) -> None:
    """Of a race by scores: the policy, the table as data, the sentence and the table in words."""
    content: dict[str, Any] = {
        "chosen": result.chosen,
        "policy": result.policy.hash,
        "recommendation": result.sentence(),
    }
    content["maximize"] = result.maximize
    rows = [plain(asdict(row)) for row in result.table]
    _write_answer(result.policy, {**content, "table": rows}, folder)
    write_atomic(folder.summary, str(result) + "\n")


def result_dict(result: Result) -> dict[str, Any]:
    """Plain values: what `result.json` holds."""
    return {
        "chosen": result.chosen,
        "policy": result.policy.hash,
        "recommendation": result.sentence(),
        "for_longer": result.for_longer._asdict() if result.for_longer else None,
        "table": [plain(asdict(row)) for row in result.table],
        "effects": result.effects.table() if result.effects else None,
        "candidates": {each.label: each.policy.hash for each in result.candidates},
        "note": result.note,
        "tried": tried_by_methods(result),
    }


def tried_by_methods(result: Result) -> dict[str, list[list[Any]]]:
    """[fold, score, seconds] of all that a method tried, in its order, by the label of its first candidate."""
    tried: dict[str, list[list[Any]]] = {}
    for label, details in result.details.items():
        if "tried" in details and details["tried"] not in tried.values():
            tried[label] = plain(details["tried"])
    return tried


def about_digest(policy: Policy) -> str:
    """Of what its hash does not count."""
    return hashlib.sha256(json.dumps([policy.name, policy.provenance], sort_keys=True).encode()).hexdigest()


def race_digest(policy: Policy) -> str:
    """Of the race that chose it, as earlier versions wrote it."""
    return hashlib.sha256(json.dumps(policy.provenance.get("race"), sort_keys=True).encode()).hexdigest()


def _shown(
    data: ImageSet, source: Any, config: SearchConfig, data_root: str | Path | None
) -> tuple[Tensor, Tensor | None]:
    """Images of a preview and their masks, which are of scenes: neighbours are often frames of one film."""
    if data.masks is not None:
        step = max(1, len(data) // 6)
        order = [index for first in range(step) for index in range(first, len(data), step)][:_SHOWN]
        return data.images[order], data.masks[order]
    made_small = config.size is None and max(data.size) == CPU_SIDE and not isinstance(source, ImageSet)
    if made_small:  # for the search alone: people want to see more
        data = load(
            source,
            data_root=data_root,
            at_most=_SHOWN,
            classes=config.classes,
            held_out=config.held_out,
            seed=config.seed,
            broken_budget=1.0,
        )
    return data.images[alternating(data.labels)[:_SHOWN]], None
