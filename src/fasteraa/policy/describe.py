"""A policy in words."""

from __future__ import annotations

from collections.abc import Sequence

from fasteraa.ops import Span, find
from fasteraa.policy.policy import Choice, Policy, Stage, SubPolicy
from fasteraa.runtime.documents import cut

_SHOWN = 3  # choices of a stage that are spelled out
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
    total = sum(sub.weight for sub in policy.sub_policies)
    count, depth = len(policy.sub_policies), policy.depth
    subs, stages = ("sub-policy" if count == 1 else "sub-policies"), ("stage" if depth == 1 else "stages")
    head = f"{cut(policy.name)}: {count} {subs}, up to {depth} {stages}, {policy.hash[:19]}"
    lines = [
        f"{number:3d}. ({sub.weight / total:.0%}) {describe_sub_policy(policy, sub)}"
        for number, sub in enumerate(policy.sub_policies, 1)
    ]
    return "\n".join([head, *strength_words(policy), *lines])


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
    """`rotate(80%, ±12.0°), then [62% solarize(...) | 38% invert(...)]`."""
    return ", then ".join(_stage(policy, stage) for stage in sub.stages) or "leave the image alone"


def _stage(policy: Policy, stage: Stage) -> str:
    if len(stage) == 1:
        return describe_choice(policy, stage[0])
    total = sum(choice.weight for choice in stage)
    ranked = sorted(stage, key=lambda choice: -choice.weight)
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


def number_words(value: float, unit: str) -> str:
    if unit == "bit":  # posterize keeps whole bits
        value = max(1, int(value))
    return _PATTERNS.get(unit, "{:.3g} " + unit).format(value)
