"""Policies of other systems, read from their own files: Fast AutoAugment's lists and PBA's schedules."""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

from fasteraa.errors import PolicyError, choices_hint
from fasteraa.ops import Span
from fasteraa.policy.policy import FORMAT, Choice, Policy, SubPolicy
from fasteraa.runtime.documents import quoted, read_text

_LARGEST_FILE = 1 << 20  # bytes
_MOST_LINES = 300  # of a schedule; PBA's own have 66
_LAST_EPOCH = 10**6
_WIDE_POSTERIZE = {"posterize": Span(8, 0, "bit")}  # whole bits are exact eighths of it


def read_foreign(text: str, name: str = "imported") -> list[tuple[int, Policy]]:
    """Either format -> (first epoch, policy) pairs; Fast AutoAugment's list has the one pair (0, policy)."""
    if _looks_like_pba(text):
        return read_pba(text, name)
    return [(0, read_fast_autoaugment(text, name))]


def _literal(text: str) -> Any:
    try:
        return _evaluated(text)
    except ValueError as error:
        raise PolicyError(
            "neither a Fast AutoAugment list [[[name, probability, level], ...], ...] nor a PBA schedule "
            "(a list [trial, clone, epochs, epochs, old, new] a line)"
        ) from error


def _evaluated(text: str) -> Any:
    """Plain values alone, nothing is executed; ValueError if it holds anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python thinks of its style
            return ast.literal_eval(text.strip())
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError("no plain values of Python") from error


def _looks_like_pba(text: str) -> bool:
    first = next((line for line in text.splitlines() if line.strip()), "")
    try:
        row = _evaluated(first)
    except ValueError:
        return False
    return isinstance(row, list) and len(row) == 6 and not isinstance(row[0], list)


# --- Fast AutoAugment ------------------------------------------------------------------------------------------

_GEOMETRIC = {
    "ShearX": "shear_x", "ShearY": "shear_y", "TranslateX": "translate_x", "TranslateY": "translate_y",
    "Rotate": "rotate",
}  # fmt: skip
_ENHANCE = {"Contrast": "contrast", "Color": "color", "Brightness": "brightness", "Sharpness": "sharpness"}
_PLAIN = {"AutoContrast": "auto_contrast", "Invert": "invert", "Equalize": "equalize", "Flip": "flip"}
_PIXELS = {"TranslateXAbs": ("translate_x", 10), "TranslateYAbs": ("translate_y", 10), "CutoutAbs": ("cutout", 20)}
_OTHER = ("Solarize", "Posterize", "Posterize2", "Cutout", "SamplePairing")
FAST_NAMES = (*_GEOMETRIC, *_ENHANCE, *_PLAIN, *_PIXELS, *_OTHER)


def read_fast_autoaugment(text: str, name: str = "imported") -> Policy:
    """[[[name, probability, level], ...], ...] with levels in [0, 1] of Fast AutoAugment's ranges."""
    rows = _literal(text)
    if not isinstance(rows, list) or not rows:
        raise PolicyError(f"a Fast AutoAugment policy must be a list of sub-policies, got {type(rows).__name__}")
    spans: dict[str, Span] = {}
    subs = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, list | tuple):
            raise PolicyError(f"a sub-policy must be a list of operations, got {quoted(row)} (sub-policy {number})")
        subs.append(SubPolicy(tuple((_fast_choice(step, number, spans),) for step in row)))
    return Policy(tuple(subs), name, spans, provenance={"imported_from": "Fast AutoAugment"})


def _fast_choice(step: Any, number: int, spans: dict[str, Span]) -> Choice:
    if not isinstance(step, list | tuple) or len(step) != 3:
        raise PolicyError(f"an operation must be [name, probability, level], got {quoted(step)} (sub-policy {number})")
    name, probability, level = step
    if name not in FAST_NAMES:
        hint = choices_hint(name, FAST_NAMES) if isinstance(name, str) else f"choices: {', '.join(FAST_NAMES)}"
        raise PolicyError(f"unknown operation {quoted(name, 80)}: {hint} (sub-policy {number})")
    level = 0.0 if name in _PLAIN else level  # nothing uses it, and Fast AutoAugment's own lists have 7.0 there
    if not isinstance(level, int | float) or not 0 <= level <= 1:
        raise PolicyError(f"level must be in [0, 1], got {quoted(level)} for op {name!r} (sub-policy {number})")
    try:
        return _fast_operation(name, probability, float(level), spans)
    except PolicyError as error:
        raise PolicyError(f"{error} (sub-policy {number})") from error


def _fast_operation(name: str, probability: float, level: float, spans: dict[str, Span]) -> Choice:
    if name in _PLAIN:
        return Choice(_PLAIN[name], probability)
    if name in _GEOMETRIC:  # level 0..1 is -max..max, mirrored at random: 0.5 does nothing
        _need_span(spans, _GEOMETRIC[name], None)
        return Choice(_GEOMETRIC[name], probability, abs(2 * level - 1))
    if name in _ENHANCE:  # 0.1..1.9, not mirrored
        return Choice(_ENHANCE[name], probability, abs(2 * level - 1), sign="+" if level >= 0.5 else "-")
    if name in _PIXELS:
        op, most = _PIXELS[name]
        _need_span(spans, op, Span(0, most, "px"))
        return Choice(op, probability, level)
    if name == "Solarize":
        return Choice("solarize", probability, 1 - math.ceil(256 * level) / 256)
    if name == "SamplePairing":
        return Choice("sample_pairing", probability, level)
    if name == "Cutout":  # up to 0.2 of the width; our span reaches 0.5
        _need_span(spans, "cutout", None)
        return Choice("cutout", probability, 0.4 * level)
    _need_span(spans, "posterize", _WIDE_POSTERIZE["posterize"])
    bits = int(4 + 4 * level) if name == "Posterize" else max(1, int(4 * level))
    return Choice("posterize", probability, (8 - bits) / 8)


def _need_span(spans: dict[str, Span], op: str, span: Span | None) -> None:
    """One policy has one span for an operation: pixels and fractions of a side cannot both stand in it."""
    if op in spans and spans[op] != span:
        raise PolicyError(f"{op!r} is given both in pixels and as a fraction of the side; a policy can hold only one")
    if span is not None:
        spans[op] = span


# --- PBA -------------------------------------------------------------------------------------------------------

_PBA_OPS = (
    "auto_contrast", "equalize", "invert", "rotate", "posterize", "solarize", "color", "contrast", "brightness",
    "sharpness", "shear_x", "shear_y", "translate_x", "translate_y", "cutout",
)  # fmt: skip
PBA_COUNTS = {0: 0.2, 1: 0.3, 2: 0.5}  # how many operations an image gets
_PBA_SPANS = {
    "translate_x": Span(0, 10, "px"),
    "translate_y": Span(0, 10, "px"),
    "cutout": Span(0, 20, "px"),
    **_WIDE_POSTERIZE,
}
Entry = tuple[float, Choice]


def read_pba(text: str, name: str = "imported") -> list[tuple[int, Policy]]:
    """A schedule -> one policy for each of its phases, with the epoch at which it begins."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) > _MOST_LINES:
        raise PolicyError(f"a PBA schedule must have at most {_MOST_LINES:,} lines, got {len(lines):,}")
    rows = [_pba_row(line, number) for number, line in lines]
    for index in range(len(rows) - 1, 0, -1):  # the log may begin with lines of other trials
        if rows[index - 1][0] != rows[index][1]:
            rows = rows[index:]
            break
    starts = [0, *(row[3] for row in rows)]
    if starts != sorted(starts):
        raise PolicyError(f"the epochs of a PBA schedule must not decrease, got {quoted(starts)}")
    phases = dict(zip(starts, [rows[0][4], *(row[5] for row in rows)], strict=True))  # of an epoch the last one
    return [(start, _pba_policy(numbers, f"{name} (from epoch {start})", start)) for start, numbers in phases.items()]


def _pba_row(line: str, number: int) -> list[Any]:
    row = _literal(line)
    if not isinstance(row, list | tuple) or len(row) != 6 or not isinstance(row[3], int):
        raise PolicyError(f"line {number} must be [trial, clone, epochs, epochs, old, new], got {quoted(line, 60)}")
    if not 0 <= row[3] <= _LAST_EPOCH:
        raise PolicyError(f"the epochs in line {number} must be in 0..{_LAST_EPOCH:,}, got {quoted(row[3], 40)}")
    configs = [config.get("hp_policy") if isinstance(config, dict) else config for config in row[4:]]
    for config in configs:
        if not isinstance(config, list) or len(config) != 4 * len(_PBA_OPS):
            raise PolicyError(f"line {number} must hold {4 * len(_PBA_OPS)} numbers for each configuration")
        if not all(isinstance(n, int) and 0 <= n <= 10 for n in config):
            raise PolicyError(f"the numbers in line {number} must be whole and in 0..10")
    return [*row[:4], *configs]


def _pba_policy(numbers: Sequence[int], name: str, start: int) -> Policy:
    """PBA shuffles its 30 entries and applies each with its probability until the image's count is used up.

    So an image gets the first `count` of a random order of the entries that say yes. The chance of every such
    sequence is computed exactly and becomes a weighted sub-policy.
    """
    entries = [
        (numbers[2 * i] / 10, _pba_choice(_PBA_OPS[i % len(_PBA_OPS)], numbers[2 * i + 1]))
        for i in range(2 * len(_PBA_OPS))
    ]
    entries = [entry for entry in entries if entry[0] > 0]
    weighted: dict[tuple[Choice, ...], float] = {}
    for count, share in PBA_COUNTS.items():
        for deeds, chance in _first_deeds(entries, count):
            weighted[deeds] = weighted.get(deeds, 0.0) + share * chance
    subs = tuple(SubPolicy(tuple((deed,) for deed in deeds), weight) for deeds, weight in weighted.items() if weight)
    provenance = {"imported_from": "PBA", "first_epoch": start}
    return Policy(subs, name, _PBA_SPANS, hole_fill=(125, 122, 113), provenance=provenance)


def _first_deeds(entries: Sequence[Entry], count: int) -> list[tuple[tuple[Choice, ...], float]]:
    """The sequences of at most `count` applied entries, with their chances.

    Given which entries say yes, any order of them is equally likely: entries i, j come first with chance
    p_i p_j E[1 / ((R + 2) (R + 1))], where R counts the others that say yes.
    """
    deeds = []
    for length in range(count + 1):
        for order in permutations(range(len(entries)), length):
            rest = [p for index, (p, _) in enumerate(entries) if index not in order]
            said_yes = yes_counts(rest)
            if length < count:  # fewer than asked for: no other entry said yes
                chance = said_yes[0] / math.factorial(length)
            else:
                chance = sum(c / math.perm(others + length, length) for others, c in enumerate(said_yes))
            chance *= math.prod(entries[index][0] for index in order)
            deeds.append((tuple(entries[index][1] for index in order), chance))
    return deeds


def yes_counts(probabilities: Sequence[float]) -> list[float]:
    """The distribution of the number of successes of independent trials."""
    chances = [1.0]
    for p in probabilities:
        chances = [a * (1 - p) + b * p for a, b in zip([*chances, 0.0], [0.0, *chances], strict=True)]
    return chances


def _pba_choice(op: str, level: int) -> Choice:
    """PBA's arithmetic for a level of 0..10, entered with probability 1 (the gate is in the weights)."""
    if op in ("auto_contrast", "equalize", "invert"):
        return Choice(op)
    if op in ("color", "contrast", "brightness", "sharpness"):
        away = 0.18 * level + 0.1 - 1
        return Choice(op, 1.0, min(abs(away) / 0.9, 1.0), sign="+" if away >= 0 else "-")
    if op == "posterize":  # PBA keeps 4 - level bits; Pillow refuses 0
        return Choice(op, 1.0, (8 - max(1, 4 - int(level * 4 / 10))) / 8)
    if op == "solarize":
        return Choice(op, 1.0, int(level * 256 / 10) / 256)
    if op == "cutout":  # our boxes include their last row and column
        return Choice(op, 1.0, max(int(level * 20 / 10) - 1, 0) / 20)
    return Choice(op, 1.0, level / 10)


# --- files -----------------------------------------------------------------------------------------------------


def import_file(source: Path, out: Path, epoch: int | None = None) -> list[tuple[Path, Policy]]:
    """Read `source` and write what it holds: one policy to the file `out`, a whole schedule into the folder `out`."""
    text = read_text(source, PolicyError, most=_LARGEST_FILE)
    if f'"{FORMAT}"' in text and text.lstrip().startswith("{"):
        raise PolicyError(f"{str(source)!r} is a policy of fasteraa already: use it as it is")
    try:
        phases = read_foreign(text, source.stem)
    except PolicyError as error:
        raise PolicyError(f"{str(source)!r}: {error}") from error
    if epoch is not None:
        if epoch < 0:
            raise PolicyError(f"epoch must be at least 0, got {epoch}")
        phases = [max((phase for phase in phases if phase[0] <= epoch), key=lambda phase: phase[0])]
    if len(phases) == 1:
        written = [(out, phases[0][1])]
    else:
        written = [(out / f"epoch-{start:04d}.json", policy) for start, policy in phases]
    for path, policy in written:
        policy.save(path)
    return written
