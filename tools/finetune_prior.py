"""The prior of a race by fine-tuning: what policies do to fine-tunings of other sets of few images.

    python tools/finetune_prior.py measure DATA WEIGHTS OUT [--minutes 4]     # DATA: NAME_64.zip, or folders NAME
    python tools/finetune_prior.py fit results/finetune/prior-measured.json   # writes selection/finetune_prior.json
    python tools/finetune_prior.py measure DATA WEIGHTS OUT --probe           # linear probes, no fine-tunings
    python tools/finetune_prior.py agree results/finetune/prior-measured.json results/finetune/probes.json

`measure` fine-tunes EfficientNet-Lite0 with every policy on 5 and 20 training images of each class, measures on the
other training images, and records how the network that had no policy sees held-out images that a policy augments. No
test image is read, and none of the sets is one of results/finetune. Finished trainings in OUT are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fasteraa._version import commit
from fasteraa.data import ImageSet, load
from fasteraa.policy.named import named
from fasteraa.runtime.device import device_name, find_device
from fasteraa.selection.finetuning import operations_per_image
from fasteraa.selection.recipe import probing
from fasteraa.train.affinity import CleanNetwork
from fasteraa.train.guess import load_logits
from fasteraa.train.job import TrainJob
from fasteraa.train.recipe import TrainRecipe, finetune_recipe, image_side, interpolation
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner.local import LocalRunner
from fasteraa.train.split import Split
from fasteraa.train.statistics import residual_spread

NETWORK = "timm:tf_efficientnet_lite0"
SETS = (
    "plantdoc", "chest", "food20", "intel", "omniglot40", "pacsart7", "vehicles6", "catsdogs", "plantvillage15",
    "ahcd28",
)  # fmt: skip
UPRIGHT = ("ahcd28", "omniglot40")  # a flip changes what they show
POLICIES = (
    "none", "trivialaugment-wide", "randaugment-m9", "three-augment", "general-mild", "uniform-half",
    "general-or-trivial", "uniform-x2", "uniform", "general",
)  # fmt: skip
SHOTS, DRAWS = (5, 20), 2
STEPS, BATCH, SIDE = 300, 16, 112


def recipe_for(name: str, weights: str, images: int, steps: int, side: int) -> TrainRecipe:
    """The same number of steps, whatever the number of images, as in results/finetune."""
    batch = min(BATCH, images)
    recipe = finetune_recipe(NETWORK, weights=weights, side=side)
    return replace(recipe, epochs=max(1, round(steps / (images // batch))), batch_size=batch, flip=name not in UPRIGHT)


def drawn_splits(data: ImageSet, draw: int, most: int) -> Iterator[tuple[int, Split]]:
    """Few images of each class, drawn anew, and the others."""
    labels, rng = data.labels.numpy(), np.random.default_rng(draw)
    order = rng.permutation(len(labels))
    rank = np.empty(len(labels), dtype=int)  # of each image within its class
    for number in range(len(data.classes)):
        mine = order[labels[order] == number]
        rank[mine] = np.arange(len(mine))
    for shots in SHOTS:
        held_out = data._take(np.flatnonzero(rank >= shots))
        if len(held_out) < len(data.classes):  # it has no more images
            continue
        if len(held_out) > most:
            held_out = held_out.subset(most, draw)
        yield shots, Split(data._take(np.flatnonzero(rank < shots)), held_out, f"draw {draw}")


class SetMeasurement:
    """All that is measured on one set."""

    def __init__(self, name: str, data: Path, given: argparse.Namespace):
        self.name, self.device = name, find_device(given.device)
        recipe = finetune_recipe(NETWORK, weights=given.weights, side=given.side)
        with TemporaryDirectory() as scratch:
            self.data = load(
                unpacked(data, name, Path(scratch)), size=image_side(recipe), interpolation=interpolation(recipe)
            )
        jobs = len(POLICIES) if self.device.type == "cuda" else 1
        self.runner = LocalRunner(
            RunCache(given.out / "runs" / name).open(), device=given.device, jobs=jobs, compile=False
        )
        self.given, self.splits = (
            given,
            {draw: list(drawn_splits(self.data, draw, given.measured)) for draw in range(DRAWS)},
        )

    def jobs(self, draw: int, shots: int, split: Split) -> list[TrainJob]:
        given = self.given
        recipe = recipe_for(self.name, given.weights, len(split.train), given.steps, given.side)
        recipe = probing(recipe) if given.probe else recipe
        keep = not given.probe
        return [
            TrainJob(f"{name}-{shots}", named(name), recipe, draw, split, keep_network=keep and name == "none")
            for name in POLICIES
        ]

    def traits_file(self, shots: int, draw: int) -> Path:
        return self.given.out / "traits" / f"{self.name}-{shots}-{draw}.json"

    def measure(self, draw: int, end: float) -> None:
        for shots, split in self.splits[draw]:
            jobs, file, began = self.jobs(draw, shots, split), self.traits_file(shots, draw), time.time()
            if file.exists():
                jobs = [replace(job, keep_network=False) for job in jobs]
            done = sum(1 for _ in self.runner.run(jobs, until=end))
            network = self.runner.cache.network(jobs[0])
            if network.exists():
                self._see(network, jobs[0], file)
                network.unlink()  # 19 MB
                network.with_suffix(".json").unlink()
            print(f"{self.name}, {shots} a class: {done} of {len(jobs)}, {time.time() - began:.1f} s", flush=True)

    def _see(self, network: Path, job: TrainJob, file: Path) -> None:
        """What the network makes of as many images as a fold of a race holds out."""
        held_out, most = job.split.held_out, max(len(job.split.train) // 2, len(self.data.classes))
        assert isinstance(held_out, ImageSet)
        few = held_out.subset(most, 0) if most < len(held_out) else held_out
        logits = load_logits(network, job, self.device)
        clean = CleanNetwork(logits, few.images.to(self.device), few.labels.to(self.device))
        content = {
            "plain": clean.plain._asdict(),
            "of": {name: clean.measure(named(name))._asdict() for name in POLICIES if name != "none"},
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content) + "\n")

    def record(self) -> list[dict[str, Any]]:
        rows = []
        for draw, splits in self.splits.items():
            for shots, split in splits:
                file = self.traits_file(shots, draw)
                outcomes = {job.label: self.runner.cache.read(replace(job, keep_network=False)) for job in
                            self.jobs(draw, shots, split)}  # fmt: skip
                of = {
                    label.rpartition("-")[0]: {"error": o.error, "loss": o.loss, "train_loss": o.train_loss}
                    for label, o in outcomes.items()
                    if o is not None and not o.failed
                }
                if "none" in of and (file.exists() or self.given.probe):
                    known = {"shots": shots, "draw": draw, "images": len(split.train), "measured": len(split.held_out)}
                    rows.append({**known, "of": of, "seen": json.loads(file.read_text()) if file.exists() else None})
        return rows


def unpacked(data: Path, name: str, scratch: Path) -> Path:
    """Training images alone."""
    if (data / name).is_dir():
        return data / name / "train"
    with zipfile.ZipFile(data / f"{name}_64.zip") as file:
        file.extractall(scratch, [each for each in file.namelist() if each.startswith("train/")])
    return scratch / "train"


def measure(given: argparse.Namespace) -> None:
    end = time.time() + 60 * given.minutes
    sets = []
    for name in given.sets.split(","):
        began = time.time()
        sets.append(SetMeasurement(name, given.data, given))
        print(f"{name}: {len(sets[-1].data)} images, {time.time() - began:.1f} s", flush=True)
    for draw in range(DRAWS):
        for each in sets:
            if time.time() < end:
                each.measure(draw, end)
                write(sets, given)


def write(sets: list[SetMeasurement], given: argparse.Namespace) -> None:
    about = {
        "machine": device_name(given.device), "commit": commit(), "network": NETWORK, "side": given.side,
        "steps": given.steps,
    }  # fmt: skip
    content = {"about": about, "sets": {each.name: {"classes": len(each.data.classes), "rows": each.record()} for
                                        each in sets}}  # fmt: skip
    (given.out / "prior-measured.json").write_text(json.dumps(content) + "\n")


# --- fitting ---------------------------------------------------------------------------------------------------------

PRIOR = Path(__file__).resolve().parent.parent / "src" / "fasteraa" / "selection" / "finetune_prior.json"
_LEAST = 0.02  # of a spread: fewer sets than there are kinds of images were measured


class Effects:
    """Logarithms of losses relative to `none`: (sets, shots, draws, policies); NaN where nothing was measured."""

    def __init__(self, content: Mapping[str, Any]):
        self.names = list(content["sets"])
        self.of = np.full((len(self.names), len(SHOTS), DRAWS, len(POLICIES) - 1), np.nan)
        for number, record in enumerate(content["sets"].values()):
            for row in record["rows"]:
                place = self.of[number, SHOTS.index(row["shots"]), row["draw"]]
                for column, name in enumerate(POLICIES[1:]):
                    if name in row["of"]:
                        place[column] = math.log(row["of"][name]["loss"] / row["of"]["none"]["loss"])

    def of_sets(self, sets: np.ndarray) -> np.ndarray:
        """A row of means for each set."""
        rows: np.ndarray = np.nanmean(self.of[sets].reshape(int(sets.sum()), -1, self.of.shape[-1]), axis=1)
        return rows

    def mean(self, sets: np.ndarray) -> np.ndarray:
        """Of each policy over sets, moved towards that of all policies as far as its noise over few sets asks for."""
        rows = self.of_sets(sets)
        means, level = rows.mean(0), rows.mean()
        noise = residual_spread(rows.tolist())
        if noise is None:
            return means
        share = max(0.0, 1 - noise**2 / len(rows) / float(np.var(means, ddof=1)))
        return np.asarray(level + share * (means - level))

    def variances(self, means: np.ndarray) -> tuple[float, float]:
        """Of a set that is new: what policies have in common, and what each has alone.

        By products of different drawings of a set, which have no noise of a training in common.
        """
        away = (self.of - means).reshape(len(self.names), -1, self.of.shape[-1])
        per_set = []
        for rows in away:
            sound = rows[np.isfinite(rows).all(1)]
            pairs = [np.outer(a, b) for i, a in enumerate(sound) for j, b in enumerate(sound) if i != j]
            per_set += [np.mean(pairs, axis=0)] if pairs else []
        products, count = np.mean(per_set, axis=0), away.shape[-1]
        few = (len(per_set) + 1) / (len(per_set) - 1)  # the means are of these very sets, and err for another
        alike = few * float(np.diag(products).mean())
        common = few * float((products.sum() - np.trace(products)) / (count * (count - 1)))
        return max(common, _LEAST**2), max(alike - common, _LEAST**2)


def line_of(means: np.ndarray) -> tuple[float, float, float]:
    """Level, slope on operations per image, and spread about it: for policies that were not measured."""
    x = np.array([operations_per_image(named(name)) for name in POLICIES[1:]])
    slope, level = np.polyfit(x, means, 1)
    return float(level), float(slope), float(np.std(means - level - slope * x))


def fit(files: Sequence[Path]) -> None:
    contents = [json.loads(file.read_text()) for file in files]
    content = {"about": contents[-1]["about"], "sets": {n: s for each in contents for n, s in each["sets"].items() if
                                                       s["rows"]}}  # fmt: skip
    effects = Effects(content)
    every = np.ones(len(effects.names), dtype=bool)
    means = effects.mean(every)
    common, alone = effects.variances(means)
    level, slope, spread = line_of(means)
    prior = {
        "about": {**content["about"], "sets": effects.names, "trainings": int(np.isfinite(effects.of).sum())},
        "effects": {name: round(float(mean), 4) for name, mean in zip(POLICIES[1:], means, strict=True)},
        "common": round(math.sqrt(common), 4),
        "alone": round(math.sqrt(alone), 4),
        "line": {"level": round(level, 4), "operations": round(slope, 4), "spread": round(spread, 4)},
    }
    PRIOR.write_text(json.dumps(prior, indent=1) + "\n")
    print(json.dumps(prior, indent=1))
    report(effects)


def report(effects: Effects) -> None:
    """How well each set is predicted by the others, and what the policy that they say is best does there."""
    truth, elsewhere, chosen = [], [], []
    for number in range(len(effects.names)):
        others = np.arange(len(effects.names)) != number
        means, own = effects.mean(others), effects.of_sets(~others)[0]
        truth.append(own)
        elsewhere.append(means)
        chosen.append(own[means.argmin()])
    y, x = np.array(truth), np.array(elsewhere)
    print("\n| prediction of a set by the others | error of log loss | right sign |\n|---|---|---|")
    print(f"| no effect | {np.sqrt(np.mean(y**2)):.3f} | |")
    print(f"| the mean of each policy | {np.sqrt(np.mean((y - x) ** 2)):.3f} | {np.mean((x < 0) == (y < 0)):.0%} |")
    head = " | ".join(POLICIES[1:])
    print(f"\n| set | {head} | the best elsewhere |\n|" + "---|" * (len(POLICIES) + 1))
    for name, row, each in zip(effects.names, y, chosen, strict=True):
        print(f"| {name} | " + " | ".join(f"{value:+.3f}" for value in row) + f" | {each:+.3f} |")
    print("| mean | " + " | ".join(f"{value:+.3f}" for value in y.mean(0)) + f" | {np.mean(chosen):+.3f} |")


# --- linear probes ---------------------------------------------------------------------------------------------------


def agree(fine_tuned: Path, probed: Path) -> None:
    """Does a linear probe choose what fine-tuning chooses? On the same images; effects are log loss ratios."""
    tuned, probes = (_effects_by_row(json.loads(file.read_text())) for file in (fine_tuned, probed))
    columns = ("set", "images a class", "the probe chooses", "fine-tuned with it", "the best", "fine-tuned with that",
               "rank correlation", "same sign")  # fmt: skip
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    rows = []
    for key in sorted(tuned.keys() & probes.keys()):
        labels = [name for name in POLICIES if name in tuned[key] and name in probes[key]]
        y, x = (np.array([effects[key][name] for name in labels]) for effects in (tuned, probes))
        order = [each[1:].argsort().argsort() for each in (x, y)]  # without `none`
        same = np.mean((x[1:] < 0) == (y[1:] < 0))
        rows.append((y[x.argmin()], y.min(), np.corrcoef(*order)[0, 1], same))
        cells = (labels[x.argmin()], f"{rows[-1][0]:+.3f}", labels[y.argmin()], f"{rows[-1][1]:+.3f}")
        print(f"| {key[0]} | {key[1]} | {' | '.join(cells)} | {rows[-1][2]:+.2f} | {same:.0%} |")
    chosen, best, alike, same = np.mean(rows, axis=0)
    print(f"| mean of {len(rows)} | | | {chosen:+.3f} | | {best:+.3f} | {alike:+.2f} | {same:.0%} |")


def _effects_by_row(content: Mapping[str, Any]) -> dict[tuple[str, int, int], dict[str, float]]:
    """(set, images a class, draw) -> policy -> logarithm of the loss relative to `none`."""
    return {
        (name, row["shots"], row["draw"]): {
            label: math.log(of["loss"] / row["of"]["none"]["loss"])
            for label, of in row["of"].items()
            if label != "none"
        }
        for name, record in content["sets"].items()
        for row in record["rows"]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    measuring = commands.add_parser("measure")
    measuring.add_argument("data", type=Path)
    measuring.add_argument("weights")
    measuring.add_argument("out", type=Path)
    measuring.add_argument("--sets", default=",".join(SETS))
    measuring.add_argument("--minutes", type=float, default=4.0)
    measuring.add_argument("--device", default="auto")
    measuring.add_argument("--steps", type=int, default=STEPS)
    measuring.add_argument("--side", type=int, default=SIDE)
    measuring.add_argument("--measured", type=int, default=500, help="images that a training is measured on, at most")
    measuring.add_argument("--probe", action="store_true", help="linear probes, as a race on a CPU takes them")
    fitting = commands.add_parser("fit")
    fitting.add_argument("file", type=Path, nargs="+", help="what was measured, maybe in several calls")
    agreeing = commands.add_parser("agree")
    agreeing.add_argument("fine_tuned", type=Path)
    agreeing.add_argument("probed", type=Path)
    given = parser.parse_args()
    if given.command == "fit":
        fit(given.file)
    elif given.command == "agree":
        agree(given.fine_tuned, given.probed)
    else:
        measure(given)


if __name__ == "__main__":
    main()
