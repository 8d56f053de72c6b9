"""What a search found, in words."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fasteraa.methods.op_effects import Effects
from fasteraa.policy.describe import and_words, sentence
from fasteraa.policy.policy import Policy
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.runtime.words import counted
from fasteraa.selection.ranking import CLEAR
from fasteraa.selection.recommendation import bars
from fasteraa.selection.result import RaceResult, Result


def mass(policy: Policy) -> dict[str, float]:
    """How often each operation is applied to an image in a stage, on average over sub-policies and stages."""
    mass_of = dict.fromkeys((choice.op for choice in policy.choices()), 0.0)
    for choice, often in policy.exposures():
        mass_of[choice.op] += often / max(policy.depth, 1)
    return mass_of


def changes(start: Policy, end: Policy) -> list[tuple[str, float, float]]:
    """(operation, mass before, mass after), from the one that gained most to the one that lost most."""
    before, after = mass(start), mass(end)
    names = dict.fromkeys([*before, *after])
    rows = [(name, before.get(name, 0.0), after.get(name, 0.0)) for name in names]
    return sorted(rows, key=lambda row: row[1] - row[2])


def summarise(result: Result) -> str:
    """The recommendation, the policy in a sentence, the candidates as bars, what helps and harms, the files."""
    parts = [result.sentence(), f"{result.chosen}: {sentence(result.policy)}"]
    if result.race is not None:
        parts.append("\n".join(filter(None, (bars(result.table), _alike(result.race)))))
    if result.effects is not None:
        parts.append(_effects(result.effects))
    if result.race is None or result.chosen.startswith("faster-aa"):
        parts.append(gradient_summary(result))
    if result.folder is not None:
        parts.append(_files(result, RunFolder(result.folder)))
    return "\n\n".join(part for part in parts if part)


def _alike(race: RaceResult) -> str:
    """Policies whose difference to the winner is within its interval, and what would tell them apart, if it matters.

    Of `none` the recommendation gives a probability.
    """
    finalists = [row.label for row in race.table[1:] if not (row.failed or row.eliminated or row.label == "none")]
    against = {label: race.against(label) for label in finalists}
    alike = [label for label, each in against.items() if each is not None and abs(each.mean) <= each.half]
    if not alike or race.chosen.label == "none":  # the recommendation has them
        return ""
    if race.is_clear:
        return f"{and_words(alike)} did about as well: no other choice is expected to gain {CLEAR:.0%} of the loss."
    flag = "--race-trainings" if race.counted else "--race-minutes"
    return f"More trainings would separate {and_words(alike)} from {race.chosen.label} (a larger {flag})."


_CLEAR = 2  # standard errors
_COLUMNS = 100


def _effects(effects: Effects) -> str:
    """Operations that help, that harm, and that are unclear."""
    clear = [op for op in effects.of if abs(effects.of[op]) > _CLEAR * effects.errors[op]]
    ranked = sorted(effects.of, key=lambda op: effects.of[op])
    rows = {
        "help": [op for op in ranked if op in clear and effects.of[op] < 0],
        "harm": [op for op in reversed(ranked) if op in clear and effects.of[op] > 0],
        "unclear": [op for op in ranked if op not in clear],
    }
    count = counted(effects.trainings, "training")
    if not clear:
        least = min(_CLEAR * error for error in effects.errors.values())
        return f"No operation clearly helps or harms: {count} show effects on the loss to ± {least:.0f} % at best."
    head = (
        "Operations on these images: change of the loss in % when an image is transformed once, "
        f"± two standard errors, from {count}"
    )
    words = {name: ops if name == "unclear" else [effects.words(op) for op in ops] for name, ops in rows.items()}
    return "\n".join([head, *(_wrapped(name, words[name]) for name in words if words[name])])


def _wrapped(name: str, words: Sequence[str]) -> str:
    """`  help     rotate -3 ± 2, ...`, continued under its first word."""
    return textwrap.fill(
        ", ".join(words), _COLUMNS, initial_indent=f"  {name:7}  ", subsequent_indent=" " * 11, break_on_hyphens=False
    )


def _files(result: Result, folder: RunFolder) -> str:
    """Where everything is, how to load the policy, and the next command."""
    pairs, masks = "sample_pairing" in result.policy.ops, result.data.masks is not None
    arguments = ", ".join(["pool=train_images"] * pairs + ["mask_fill=255"] * masks)
    pool = "   # pool: images to mix in, a list or uint8 (N, 3, H, W)" if pairs else ""
    path = folder.path
    return "\n".join(
        [
            f"policy   {folder.policy}  {result.policy.hash[:19]}",
            f"picture  {folder.preview}",
            f"python   fasteraa.load({str(path)!r}).transform({arguments}){pool}",
            f"details  fasteraa show {path}",
            f"next     fasteraa report {path}",
        ]
    )


def gradient_summary(result: Result) -> str:
    """Which operations gained and which were suppressed by the critic; empty without a gradient search."""
    policies = {each.label: each.policy for each in result.candidates}
    if "faster-aa" not in policies or "faster-aa-start" not in policies:
        return ""
    rows = changes(policies["faster-aa-start"], policies["faster-aa"])
    gained = [f"{name} ({a:.1%} to {b:.1%})" for name, a, b in rows if b > 1.25 * a and b > 0.005]
    lost = [f"{name} ({a:.1%} to {b:.1%})" for name, a, b in reversed(rows) if b < 0.5 * a and a > 0.005]
    before, after = sum(a for _, a, _ in rows), sum(b for _, _, b in rows)
    return "\n".join(
        [
            "How often a stage of the gradient search's policy applies an operation, start to end:",
            f"  gained:     {', '.join(gained) or 'none'}",
            f"  suppressed: {', '.join(lost) or 'none'}",
            f"  any at all: {before:.1%} to {after:.1%}",
        ]
    )
