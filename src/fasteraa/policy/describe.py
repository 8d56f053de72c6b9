"""A policy in words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from fasteraa.ops import Span, find
from fasteraa.policy.policy import Choice, Policy, Stage, SubPolicy
from fasteraa.runtime.documents import cut

if TYPE_CHECKING:
    from fasteraa.policy.draw import Deed

_SHOWN = 3  # choices of a stage that are spelled out
_MET = 6  # operations that are named
_MOSTLY = 3  # operations that a sentence names
_OFTEN = 1.4  # as often as the others on average, to be named
_MILD, _STRONG = 0.35, 0.65  # mean magnitudes, as shares of what an operation usually does at most
_COUNTS = {1.0: "one", 2.0: "two", 3.0: "three", 4.0: "four"}
_NONE = "leave the image alone"
_PATTERNS = {
    "slope": "{:.2f}",
    "width": "{:.0%} of the width",
    "height": "{:.0%} of the height",
    "px": "{:.0f} px",
    "degree": "{:.1f}°",
    "level": "level {:.0f}",
    "bit": "{:.0f} bits",
    "factor": "x{:.2f}",
    "share": "{:.0%}",
}


def describe(policy: Policy) -> str:
    """A head and a plain sentence, then a line for each sub-policy; with a schedule these for each of its parts."""
    count, depth = len(policy.sub_policies), policy.depth
    subs, stages = ("sub-policy" if count == 1 else "sub-policies"), ("stage" if depth == 1 else "stages")
    schedule = f"a schedule of {len(policy.parts)} parts, " if policy.scheduled else ""
    head = f"{cut(policy.name)}: {schedule}{count} {subs}, up to {depth} {stages}, {policy.hash[:19]}"
    lines = [
        line
        for part in policy.parts
        for line in ([f"{part}:"] if policy.scheduled else []) + _sub_policy_lines(part.policy)
    ]
    return "\n".join([head, sentence(policy), *strength_words(policy), *lines])


def sentence(policy: Policy) -> str:
    """`About two mild operations an image, mostly solarize and equalize.`"""
    frequency = _frequency(policy)
    total = sum(frequency.values())
    if total < 0.01:
        return "Leaves every image as it is."
    strength = _strength_word(policy)
    changing = ", changing during the training" if policy.scheduled else ""
    return f"About {_how_many(total, strength)}, {_mostly(frequency)}{changing}."


def _how_many(total: float, strength: str) -> str:
    if total < 0.75:
        return f"one {strength}operation for every {_COUNTS.get(round(1 / total), round(1 / total))} images"
    halves = round(2 * total) / 2
    return f"{_COUNTS.get(halves, f'{halves:g}')} {strength}operation{'s' * (halves != 1)} an image"


def _mostly(frequency: dict[str, float]) -> str:
    """The operations that are clearly more frequent than the others, or how many there are."""
    ranked = [op for op in sorted(frequency, key=lambda op: -frequency[op]) if frequency[op] > 0]
    mean = sum(frequency.values()) / len(ranked)
    if len(ranked) <= _MOSTLY:
        return and_words(ranked)
    often = [op for op in ranked if frequency[op] > _OFTEN * mean][:_MOSTLY]
    return f"mostly {and_words(often)}" if often else f"drawn evenly from {len(ranked)} kinds"


def and_words(names: Sequence[str]) -> str:
    """`a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _strength_word(policy: Policy) -> str:
    """By magnitudes in the middle of their ranges, relative to what the operations usually do at most."""
    total, reached = 0.0, 0.0
    for choice, often in policy.scaled().exposures():
        span, usual = policy.span(choice.op), find(choice.op).span
        if span is None or usual is None:
            continue
        middle = sum(choice.range) / 2
        if span.unit == usual.unit:
            middle *= abs(span.at_one - span.at_zero) / abs(usual.at_one - usual.at_zero)
        total, reached = total + often, reached + often * middle
    if not total:
        return ""
    return "mild " if reached < _MILD * total else "strong " if reached > _STRONG * total else "medium "


def _frequency(policy: Policy) -> dict[str, float]:
    """How often each operation is applied to an image."""
    passes = sum(number * share for number, share in enumerate(policy.strength.passes))
    frequency: dict[str, float] = {}
    for choice, often in policy.scaled().exposures():
        frequency[choice.op] = frequency.get(choice.op, 0.0) + passes * often
    return frequency


def _sub_policy_lines(policy: Policy) -> list[str]:
    total = sum(sub.weight for sub in policy.sub_policies)
    return [
        f"{number:3d}. ({_share(sub.weight / total)}) {describe_sub_policy(policy, sub)}"
        for number, sub in enumerate(policy.sub_policies, 1)
        if sub.weight
    ]


def _share(share: float) -> str:
    return "<1%" if share < 0.005 else f"{share:.0%}"


def operations_words(policy: Policy) -> str:
    """`an image is augmented by rotate 0.31, solarize 0.12 and 5 more`: how often, the most frequent first."""
    met = _frequency(policy)
    ranked = sorted((op for op in met if met[op] > 0), key=lambda op: -met[op])
    words = ", ".join(f"{op} {met[op]:.2g}" for op in ranked[:_MET])
    rest = len(ranked) - _MET
    return f"an image is augmented by {words}{f' and {rest} more' if rest > 0 else ''}" if ranked else _NONE


def strength_words(policy: Policy) -> list[str]:
    """`strength: 50% of images pass through 1 sub-policy, 50% through 2; magnitudes x1.2`; nothing if plain."""
    strength = policy.strength
    if strength.plain:
        return []
    scales = [
        f"{name} x{scale:.3g}"
        for name, scale in (("magnitudes", strength.magnitude), ("probabilities", strength.probability))
        if scale != 1
    ]
    return ["strength: " + "; ".join([_passes_words(strength.passes), *scales])]


def _passes_words(passes: Sequence[float]) -> str:
    """`every image passes through 2 sub-policies`, or the shares."""
    (number, share), *rest = [(number, share) for number, share in enumerate(passes) if share]
    through = f"through {number or 'no'} sub-polic{'ies' if number > 1 else 'y'}"
    if not rest:
        return f"every image passes {through}"
    return ", ".join(
        [f"{100 * share:.3g}% of images pass {through}", *(f"{100 * s:.3g}% through {n}" for n, s in rest)]
    )


def describe_sub_policy(policy: Policy, sub: SubPolicy) -> str:
    """`rotate(80%, ±12.0°), then 2 times [62% solarize(...) | 38% invert(...)]`; what never happens is left out."""
    stages = [words for stage in sub.stages if (words := _stage(policy, stage))]
    runs = [(words, len(list(same))) for words, same in groupby(stages)]
    return ", then ".join(words if count == 1 else f"{count} times {words}" for words, count in runs) or _NONE


def _stage(policy: Policy, stage: Stage) -> str:
    """Without choices that are made, or operations that are applied, in less than half a percent of cases."""
    total = sum(choice.weight for choice in stage)
    likely = [c for c in stage if c.weight / total >= 0.005 and c.probability >= 0.005]
    if len(stage) == 1 or not likely:
        return " ".join(describe_choice(policy, choice) for choice in likely)
    ranked = sorted(likely, key=lambda choice: -choice.weight)
    words = [f"{c.weight / total:.0%} {describe_choice(policy, c)}" for c in ranked[:_SHOWN]]
    rest = len(ranked) - len(words)
    return "[" + " | ".join(words) + (f" | {rest} more" if rest else "") + "]"


def describe_choice(policy: Policy, choice: Choice) -> str:
    span, low, high = policy.span(choice.op), *choice.range
    words = f"{choice.op}({choice.probability:.0%}"
    if span is not None:
        words += ", " + physical_words(choice, span, low)
        words += f" to {physical_words(choice, span, high)}" if high > low else ""
    return words + ")"


def physical_words(choice: Choice, span: Span, magnitude: float) -> str:
    """`±12.0°`, `level 128`, `x0.46 or x1.54`."""
    if not find(choice.op).signed:
        return number_words(span.value(magnitude), span.unit)
    if choice.sign != "random":
        return number_words(span.value(magnitude, 1.0 if choice.sign == "+" else -1.0), span.unit)
    if span.at_zero == 0:
        return "±" + number_words(span.value(magnitude), span.unit)
    return " or ".join(number_words(span.value(magnitude, sign), span.unit) for sign in (-1.0, 1.0))


def deed_words(policy: Policy, deed: Deed) -> str:
    """`rotate -12.0°`, `translate_x 20%`: one operation as it was applied to one image."""
    span = policy.span(deed.op.name)
    if span is None:
        return deed.op.name
    words = number_words(span.value(deed.magnitude, deed.sign), span.unit)
    return f"{deed.op.name} {words.removesuffix(f' of the {span.unit}')}"


def number_words(value: float, unit: str) -> str:
    if unit == "bit":  # posterize keeps whole bits
        value = max(1, int(value))
    return _PATTERNS.get(unit, "{:.3g} " + unit).format(value)
