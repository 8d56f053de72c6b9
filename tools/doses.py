"""How much augmentation does a long training want? Strong policies, mixtures of them, and what comes after them.

    PYTHONPATH=src python3 tools/doses.py OUT.json SOURCE [--recipe cifar/wrn-40-2] [--seeds 0] [--jobs 14]
        [--only LABEL ...] [--found POLICY.json ...]

Every line is one training by a recipe of `fasteraa reproduce`, measured on the source's held-out images; sources should
hold out images that no comparison is tested on. A line is a policy, the cutout after it (that of the recipe, where
nothing else is said), and what becomes of both while the training goes on. `found` are policies of a search, the first
one for the first seed; lines with that word are made of them. What OUT.json has already is not trained again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fasteraa.train import device_batches as feed
from fasteraa.train.split import open_arena
from fasteraa.selection.candidates import _either
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.trainer import Diverged, Job, Training, train_together
from fasteraa.ops import OPS
from fasteraa.policy import Choice, Policy
from fasteraa.reproduce.schema import find_recipe

Schedule = Callable[[float], tuple[Policy, int]]  # progress in [0, 1) -> policy and side of the cutout


@dataclass(frozen=True)
class Line:
    policy: Policy
    cutout: int | None = None  # that of the recipe
    schedule: Schedule | None = None


def lines(searched: Policy | None) -> dict[str, Line]:
    uniform, general, none = Policy.named("uniform"), Policy.named("general"), Policy.named("none")
    trivial, auto = Policy.named("trivialaugment-wide"), Policy.named("autoaugment-cifar10")
    plain = {
        "none": none,
        "trivialaugment-wide": trivial,
        "trivialaugment-wide, 2 passes": trivial.with_strength(2),
        "randaugment(2,14)": Policy.named("randaugment(2,14)"),
        "randaugment(3,14)": Policy.named("randaugment(3,14)"),
        "uniform": uniform,
        "uniform, 2 passes": uniform.with_strength(2),
        "uniform, 3 passes": uniform.with_strength(3),
        "autoaugment-cifar10": auto,
        "autoaugment-cifar10, 2 passes": auto.with_strength(2),
        "general": general,
        "general, 2 passes": general.with_strength(2),
        "general or any one": _either(general, trivial),
        "general, then a pair": then(general, Choice("sample_pairing", 1.0, (0.0, 1.0))),
        "uniform, 2 passes, then a pair": then(uniform, Choice("sample_pairing", 1.0, (0.0, 1.0))).with_strength(2),
        "uniform, far more often": surely(uniform),
    }
    if searched is not None:
        plain |= {
            "found": searched,
            "found or any one": _either(searched, trivial),
            "found or uniform": _either(searched, uniform.with_strength(1)),
            "found, far warps": far(searched, 1.0),
            "general, far warps": far(general, 1.0),
        }
    found = {label: Line(policy, 0 if label == "none" else None) for label, policy in plain.items()}
    bare = ("randaugment(2,14)", "uniform, 2 passes", "uniform, 3 passes", "autoaugment-cifar10", "general, 2 passes")
    found |= {f"{label}; no cutout": Line(plain[label], 0) for label in bare}
    found |= {f"uniform, 2 passes; cutout of {side}": Line(plain["uniform, 2 passes"], side) for side in (8, 20, 24)}
    found |= {f"uniform; cutout of {side}": Line(uniform, side) for side in (20, 24)}
    for label in ("uniform", "uniform, 2 passes", "randaugment(2,14)", "general or any one"):
        found[f"{label}; two cutouts"] = Line(then(plain[label], Choice("cutout", 1.0, 1.0)))
    found["uniform, 3 operations"] = Line(Policy.named("uniform(3)"))
    for label in ("uniform, 2 passes", "uniform, 3 passes", "general, 2 passes"):
        policy = plain[label]
        found[f"{label}; clean at the end"] = Line(
            policy, schedule=lambda at, p=policy: (p, 16) if at < 0.9 else (none, 0)
        )
        weaker = [policy.with_strength(probability=share / 5) for share in range(5, 0, -1)]
        found[f"{label}; less and less"] = Line(policy, schedule=lambda at, w=weaker: (w[int(5 * at)], 16))
    stronger = [uniform.with_strength(2, probability=share / 5) for share in range(1, 6)]
    found["uniform, 2 passes; more and more"] = Line(stronger[-1], schedule=lambda at: (stronger[int(5 * at)], 16))
    return found


def then(policy: Policy, choice: Choice) -> Policy:
    """With one more operation, at the end of every pass."""
    subs = policy.sub_policies
    return replace(policy, sub_policies=tuple(replace(sub, stages=(*sub.stages, (choice,))) for sub in subs))


def far(policy: Policy, reach: float) -> Policy:
    """With warps of any magnitude up to that one."""

    def further(choice: Choice) -> Choice:
        return replace(choice, magnitude=(0.0, reach)) if OPS[choice.op].geometric and OPS[choice.op].span else choice

    stages = [[tuple(map(further, stage)) for stage in sub.stages] for sub in policy.sub_policies]
    subs = zip(policy.sub_policies, stages, strict=True)
    return replace(policy, sub_policies=tuple(replace(sub, stages=tuple(each)) for sub, each in subs))


def surely(policy: Policy) -> Policy:
    """Every stage at work on every image."""
    stages = [
        [tuple(replace(c, probability=1.0) for c in stage) for stage in sub.stages] for sub in policy.sub_policies
    ]
    subs = zip(policy.sub_policies, stages, strict=True)
    return replace(policy, sub_policies=tuple(replace(sub, stages=tuple(each)) for sub, each in subs))


class Scheduled(feed.DeviceFeed):
    """Another policy and another cutout as time goes on."""

    def follow(self, schedule: Schedule) -> Scheduled:
        self.schedule = schedule
        return self

    def epoch(self, number: int) -> Iterator[feed.Batch]:
        self.policy, side = self.schedule(number / self.recipe.epochs)
        self.recipe = replace(self.recipe, cutout=side)
        self.idle = feed.is_idle(self.policy)
        yield from super().epoch(number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("source")
    parser.add_argument("--recipe", default="cifar/wrn-40-2")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--only", nargs="+", metavar="LABEL")
    parser.add_argument("--found", nargs="+", type=Path, default=[], metavar="POLICY.json")
    parser.add_argument("--minutes", type=float, default=9.0)
    given = parser.parse_args()
    until = time.time() + 60 * given.minutes
    recipe = find_recipe(given.recipe)
    recipe = recipe if given.epochs is None else replace(recipe, epochs=given.epochs)
    errors = json.loads(given.out.read_text()) if given.out.exists() else {}
    mine = errors.setdefault(given.recipe, {})
    found = {seed: Policy.load(file) for seed, file in zip(given.seeds, given.found, strict=False)}
    waiting = [
        (label, seed, line)
        for seed in given.seeds
        for label, line in lines(found.get(seed)).items()
        if str(seed) not in mine.get(label, {}) and (given.only is None or label in given.only)
    ]
    with tempfile.TemporaryDirectory() as folder:
        arena = open_arena(given.source, Path(folder))
        for first in range(0, len(waiting), given.jobs):
            few = waiting[first : first + given.jobs]
            jobs = [Job(line.policy, _recipe(recipe, line), seed) for _, seed, line in few]
            with schedules([line.schedule for _, _, line in few]):
                done = train_together(arena.data, arena.held_out, jobs, device="auto", until=lambda: until)
            for (label, seed, _), run in zip(few, done, strict=True):
                if not isinstance(run, Diverged):
                    told = {"error": round(run.error, 3), "loss": round(run.held_out_loss, 4)}
                    told |= {"training_loss": round(run.train_loss, 4), "seconds": round(run.seconds, 1)}
                    mine.setdefault(label, {})[str(seed)] = told | {"together": run.together}
                    print(f"{given.recipe} seed {seed}: {run.error:6.2f} {run.train_loss:6.3f} {label}", flush=True)
            given.out.write_text(json.dumps(errors, indent=1) + "\n")


def _recipe(recipe: TrainRecipe, line: Line) -> TrainRecipe:
    return recipe if line.cutout is None else replace(recipe, cutout=line.cutout)


class schedules:
    """Trainings made within, in this order, follow these schedules."""

    def __init__(self, following: list[Schedule | None]):
        self.following, self.plain = following, Training.__init__

    def __enter__(self) -> None:
        waiting = iter(self.following)

        def init(training: Training, data, policy, recipe, seed, device) -> None:
            self.plain(training, data, policy, recipe, seed, device)
            schedule = next(waiting)
            if schedule is not None:
                training.feed = Scheduled(data, policy, recipe, seed, device).follow(schedule)

        Training.__init__ = init  # type: ignore[method-assign]

    def __exit__(self, *about: object) -> None:
        Training.__init__ = self.plain  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
