"""What a search found, in words."""

from __future__ import annotations

from fasteraa.policy.artifact import Policy


def mass(policy: Policy) -> dict[str, float]:
    """How often each operation is applied to an image in a stage, on average over sub-policies and stages."""
    found = dict.fromkeys((choice.op for choice in policy.choices()), 0.0)
    for choice, often in policy.meetings():
        found[choice.op] += often / max(policy.depth, 1)
    return found


def changes(start: Policy, found: Policy) -> list[tuple[str, float, float]]:
    """(operation, mass before, mass after), from the one that gained most to the one that lost most."""
    before, after = mass(start), mass(found)
    names = dict.fromkeys([*before, *after])
    rows = [(name, before.get(name, 0.0), after.get(name, 0.0)) for name in names]
    return sorted(rows, key=lambda row: row[1] - row[2])


def summarise(start: Policy, found: Policy) -> str:
    """The sub-policies, and which operations gained and which were suppressed against the start."""
    rows = changes(start, found)
    gained = [f"{name} ({a:.1%} to {b:.1%})" for name, a, b in rows if b > 1.25 * a and b > 0.005]
    lost = [f"{name} ({a:.1%} to {b:.1%})" for name, a, b in reversed(rows) if b < 0.5 * a and a > 0.005]
    total_before, total_after = sum(a for _, a, _ in rows), sum(b for _, _, b in rows)
    return "\n".join(
        [
            found.describe(),
            "",
            "How often an image meets an operation in a stage, start to end:",
            f"  gained:     {', '.join(gained) or 'none'}",
            f"  suppressed: {', '.join(lost) or 'none'}",
            f"  any at all: {total_before:.1%} to {total_after:.1%}",
        ]
    )
