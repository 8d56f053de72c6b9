"""The card of a shared policy: a README.md that says what it does, where it comes from and how to use it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from statistics import mean
from typing import Any

from fasteraa.policy.policy import Policy

PREVIEW = "preview.png"
_TAGS = ("data-augmentation", "image-augmentation", "autoaugment", "fasteraa")


def card(
    policy: Policy,
    repo_id: str | None = None,
    *,
    license: str | None = None,
    tags: Iterable[str] = (),
    preview: bool = False,
) -> str:
    """Markdown under the metadata that the hub reads; `preview` shows a picture that lies beside it."""
    parts = [
        _front_matter(license, [*_TAGS, *tags]),
        f"# {_line(policy.name)}",
        _opening(policy),
        f"![originals and augmented images, a row for each sub-policy]({PREVIEW})" if preview else "",
        _use(policy, repo_id or "USER/NAME"),
        _cautions(policy),
        f"## What it does\n\n```text\n{policy.describe()}\n```",
        _search(policy.provenance),
        _race(policy.provenance.get("race", policy.provenance.get("calibration"))),  # version 0.1 called it calibration
        f"## Identity\n\n`{policy.hash}`, over all that the policy does; `fasteraa show` prints its beginning.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


_SCHEDULE = " It changes during a training: call `transform.set_epoch(epoch, epochs)` before every epoch."


def _front_matter(license: str | None, tags: list[str]) -> str:
    """YAML; strings are written as JSON, which is YAML too, so that none of them can be misread."""
    lines = ["library_name: fasteraa", "tags:", *(f"- {json.dumps(tag)}" for tag in dict.fromkeys(tags))]
    if license is not None:
        lines.append(f"license: {json.dumps(license)}")
    return "\n".join(["---", *lines, "---"])


def _opening(policy: Policy) -> str:
    method, data = policy.provenance.get("method"), _mapping(policy.provenance.get("data"))
    origin = f", from a search ({_line(method)})" + (f" on {_data(data)}" if data else "") if method else ""
    shape = f"{_count(len(policy.sub_policies), 'sub-policy')} of up to {_count(policy.depth, 'stage')}"
    return (
        f"An image augmentation policy for fasteraa{origin}. It has {shape}, with "
        f"{', '.join(policy.ops) or 'no operation at all'}. Every image draws a sub-policy of its own."
        f"{_SCHEDULE * policy.scheduled}"
    )


def _data(data: Mapping[str, Any]) -> str:
    words = _line(data.get("name", "images"))
    size = data.get("size")
    if data.get("images") and data.get("classes"):
        marked = "with masks of" if data.get("task") == "segmentation" else "of"
        words += f" ({data['images']} images {marked} {data['classes']} classes"
        words += f", {size[0]}x{size[1]})" if isinstance(size, list | tuple) and len(size) == 2 else ")"
    return words


def _use(policy: Policy, repo_id: str) -> str:
    masks = _mapping(policy.provenance.get("data")).get("task") == "segmentation"
    options = "mask_fill=255" if masks else ""
    kinds = "Pillow and uint8 images" + (" and tv_tensors.Mask" if masks else "")
    return (
        "## Use it\n\n```python\nimport fasteraa  # pip install '.[hub]' in a checkout of fasteraa\n\n"
        f"policy = fasteraa.Policy.from_hub({json.dumps(repo_id)})\n"
        f"transform = policy.transform({options})  # a torchvision v2 transform for {kinds}\n```\n\n"
        "`policy.json` is plain JSON; `fasteraa export` turns it into a transform of other libraries."
    )


def _cautions(policy: Policy) -> str:
    words_of = {
        "flip": "It mirrors images: not for text, digits and whatever else has a left and a right.",
        "invert": "It inverts colours: not where the colour itself is what counts.",
        "sample_pairing": "It mixes in other images: the last ones it has seen, or those you give as `pool`.",
    }
    lines = [f"- {words}" for op, words in words_of.items() if op in policy.ops]
    return "\n".join(["## Before you use it", "", *lines]) if lines else ""


def _search(provenance: Mapping[str, Any]) -> str:
    """What is known of the search; settings in full are in policy.json."""
    if "method" not in provenance:
        return ""
    config, versions = _mapping(provenance.get("config")), _mapping(provenance.get("versions"))
    rows = {
        "critic": provenance.get("backbone"),
        "epochs": provenance.get("epochs"),
        "seed": config.get("seed"),
        "batch size": config.get("batch_size"),
        "seconds": provenance.get("seconds"),
        "device": provenance.get("device"),
        "ended early": None if provenance.get("finished", True) else "yes",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()) or None,
    }
    facts = [(name, value) for name, value in rows.items() if value is not None]
    return "## The search\n\n" + _table(("", ""), facts)


def _race(race: Any) -> str:
    try:
        rows = [
            (row["candidate"], _mean(row["errors"], 1), _mean(row.get("losses"), 3), len(row["errors"]), _end(row))
            for row in race["table"]
        ]
        sentence = _line(race["sentence"])
    except (KeyError, TypeError, ValueError, AttributeError):  # there was none, or somebody wrote another thing there
        return ""
    columns = ("policy", "error in %", "loss", "trainings", "training loss")
    return (
        "## How it did\n\nErrors and losses on images held out from training, in short trainings; not on test images."
        "\n\n"
        f"{_table(columns, rows)}\n\n{sentence}{_effects(race.get('effects'))}"
    )


def _effects(effects: Any) -> str:
    try:
        rows = [
            (op, f"{change:+.1f}", f"{2 * error:.1f}")
            for op, (change, error) in sorted(effects["of"].items(), key=lambda item: item[1][0])
        ]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):  # it was not tested
        return ""
    return (
        "\n\nWhat operations do here: the change of the loss on those images, in %, when every image is augmented by "
        f"one once, with two standard errors.\n\n{_table(('operation', 'loss in %', '±'), rows)}"
    )


def _mean(numbers: Any, digits: int) -> str:
    """Empty where there are none: of a training that failed, or the losses that an earlier version did not keep."""
    return f"{mean(numbers):.{digits}f}" if numbers else ""


def _end(row: Mapping[str, Any]) -> str:
    """The training loss, or why there is none."""
    failed, loss = row.get("failed", row.get("diverged")), row.get("training_loss")
    return str(failed) if failed else "" if loss is None else f"{loss:.3f}"


def _table(columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join("| " + " | ".join(_line(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _mapping(value: Any) -> Mapping[str, Any]:
    """Nobody checks what a file says about its origin."""
    return value if isinstance(value, Mapping) else {}


def _count(number: int, what: str) -> str:
    plural = what[:-1] + "ies" if what.endswith("y") else what + "s"
    return f"{number} {what if number == 1 else plural}"


def _line(text: Any) -> str:
    return " ".join(str(text).split())
