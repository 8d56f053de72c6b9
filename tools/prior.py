"""The prior of the race: what cheap measurements on somebody's images say about each policy.

    python tools/prior.py pack ZOO DATA      # a folder or zip each, with train/CLASS/ and test/CLASS/; NAME.npz of each
    python tools/prior.py measure DATA OUT [--minutes 9]     # DATA: NAME.npz each (x_train, y_train, x_test, y_test)
    python tools/prior.py measure DATA OUT --network small --device cpu --folds 2 --lengths 50 --no-test
    python tools/prior.py fit results/adapt/measured.json results/adapt/small.json  # writes selection/prior.json
    python tools/prior.py fit results/adapt/measured.json --without intel --out intel.json    # to be judged on that set

`measure` trains every policy on every set: on three folds of its training images with two lengths, as a race does, and
on all of them, measured on the test images. It also records how a network that was trained without a policy fares on
held-out images that each policy and each operation augments, and what the gradient search finds.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zipfile import ZipFile

import numpy as np
import torch

from fasteraa._version import commit
from fasteraa.data import ImageSet, load
from fasteraa.methods import Candidate
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.faster_aa.run import gradient_search
from fasteraa.ops import OPS
from fasteraa.policy.named import named
from fasteraa.policy.policy import Choice, Policy, SubPolicy
from fasteraa.runtime.device import device_name, find_device
from fasteraa.selection.prior import Traits
from fasteraa.selection.ranking import Trial
from fasteraa.train.affinity import CleanNetwork, load_clean
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.metrics import Measured
from fasteraa.train.recipe import TrainRecipe, default_recipe
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner.local import LocalRunner
from fasteraa.train.split import Split, fold_splits

_UPRIGHT = ("ahcd28", "omniglot40", "svhn", "mnist")
NAMED = (
    "none", "trivialaugment-wide", "randaugment-2-9", "randaugment-2-14", "general", "general-or-trivial",
    "general-mild", "uniform-half", "uniform-x2", "autoaugment-cifar10", "color-ops-x2", "three-augment",
)  # fmt: skip
SHORT, LONG, FULL = 50, 200, 200  # epochs: of folds, of folds, of all training images
FOLDS, SEED = 3, 0


def is_upright(name: str) -> bool:
    """Whether a flip changes what the images show."""
    return name.startswith(_UPRIGHT)


def recipe_for(name: str, network: str, epochs: int) -> TrainRecipe:
    recipe = default_recipe(network, 32)
    return replace(recipe, epochs=epochs, cutout=0, flip=not is_upright(name), warmup=min(recipe.warmup, epochs / 8))


def load_set(file: Path) -> tuple[ImageSet, ImageSet]:
    content = np.load(file)
    names = ("x", "y", "xt", "yt") if "xt" in content else ("x_train", "y_train", "x_test", "y_test")
    classes = tuple(str(number) for number in range(int(content[names[1]].max()) + 1))

    def images(x: str, y: str) -> ImageSet:
        pixels = torch.from_numpy(content[x]).permute(0, 3, 1, 2).contiguous()
        return ImageSet.of(pixels, torch.from_numpy(content[y].astype(np.int64)), classes, file.stem)

    return images(*names[:2]), images(*names[2:])


def pack(zoo: Path, data: Path, pattern: str, images: int, test_images: int, size: int) -> None:
    """NAME.npz of every folder or zip in `zoo`, with at most so many images, drawn evenly from the classes."""
    data.mkdir(parents=True, exist_ok=True)
    for source in sorted(zoo.glob(pattern)):
        with TemporaryDirectory() as folder:
            if source.suffix == ".zip":
                with ZipFile(source) as archive:
                    archive.extractall(folder)
            root, content = Path(folder) if source.suffix == ".zip" else source, {}
            for part, most in (("train", images), ("test", test_images)):
                there = load(root / part, size=size)
                some = load(root / part, size=size, subset=most) if len(there) > most else there
                content[f"x_{part}"], content[f"y_{part}"] = _arrays(some)
        name = source.stem.partition("_")[0]
        np.savez_compressed(data / f"{name}.npz", **content)
        print(f"{name}: {len(content['y_train'])} training images, {len(content['y_test'])} test images", flush=True)


def _arrays(images: ImageSet) -> tuple[np.ndarray, np.ndarray]:
    return images.images.permute(0, 2, 3, 1).numpy(), images.labels.numpy()


def always(op: str) -> Policy:
    """The operation on every image, at any magnitude."""
    return Policy((SubPolicy(((Choice(op, 1.0, (0.0, 1.0) if OPS[op].span else None),),)),), op)


def all_policies(found: Policy) -> dict[str, Policy]:
    """Those with a name, and what the gradient search found, at three strengths."""
    more = {
        "faster-aa": found,
        "faster-aa-mild": found.with_strength(magnitude=0.5, probability=0.5),
        "faster-aa-x2": found.with_strength(2),
    }
    return {**{name: named(name) for name in NAMED}, **more}


class Extent(NamedTuple):
    """How much is measured on each set."""

    labels: tuple[str, ...] = ()  # of policies; all of them
    folds: int = FOLDS
    lengths: tuple[int, ...] = (SHORT, LONG)
    on_test_images: bool = True


ALL_OF_IT = Extent()


class SetMeasurement:
    """All that is measured on one set."""

    def __init__(
        self,
        file: Path,
        out: Path,
        network: str,
        device: str,
        policy: Mapping[str, Any] | None = None,
        extent: Extent = ALL_OF_IT,
    ):
        self.name, self.network, self.extent = file.stem, network, extent
        self.train, self.test = load_set(file)
        self.folder = out / self.name
        jobs = 20 if find_device(device).type == "cuda" else None
        self.runner = LocalRunner(RunCache(self.folder).open(), device=device, jobs=jobs, compile=False)
        self.folds = fold_splits(self.train, FOLDS, SEED)
        self.device = device
        if policy is not None:
            (self.folder / "faster-aa.json").write_text(json.dumps(policy))

    def policies(self) -> dict[str, Policy]:
        return all_policies(self.searched())

    def searched(self) -> Policy:
        file = self.folder / "faster-aa.json"
        if not file.exists():
            config = SearchConfig(seed=SEED, flip=not is_upright(self.name), batch_size=128)
            gradient_search(self.train, config, device=self.device).policy.save(file)
        return Policy.load(file)

    def jobs(self, epochs: int, splits: list[Split], seed: int | None = None) -> list[TrainJob]:
        recipe = recipe_for(self.name, self.network, epochs)
        return [
            TrainJob(label, policy, recipe, number if seed is None else seed, split, keep_network=label == "none")
            for number, split in enumerate(splits)
            for label, policy in self.policies().items()
            if not self.extent.labels or label in (*self.extent.labels, "none")
        ]

    def steps(self) -> Iterator[list[TrainJob]]:
        """The most telling first."""
        whole = [Split(self.train, self.test, "test images")]
        for epochs in self.extent.lengths:
            yield self.jobs(epochs, self.folds[: self.extent.folds])
        for seed in (0, 1) if self.extent.on_test_images else ():
            yield self.jobs(FULL, whole, seed)

    def record(self) -> dict[str, Any]:
        rows = []
        for jobs in self.steps():
            rows += [_row(job, outcome) for job in jobs if (outcome := self.runner.cache.read(job)) is not None]
        return {
            "images": len(self.train), "test_images": len(self.test), "classes": len(self.train.classes),
            "flip": not is_upright(self.name), "network": self.network, "rows": rows,
            "seen": self.seen(), "faster-aa": json.loads((self.folder / "faster-aa.json").read_text()),
        }  # fmt: skip

    def seen(self) -> list[dict[str, Any]]:
        """What the clean network of each fold makes of augmented images."""
        found = []
        for epochs in (SHORT, LONG):
            for job in (job for job in self.jobs(epochs, self.folds) if job.label == "none"):
                if self.runner.cache.read(job) is None:
                    continue
                clean = load_clean(self.runner.cache.network(job), job, self.runner.device)
                found.append({"epochs": epochs, "fold": job.split.name, **self._affinities(clean)})
        return found

    def _affinities(self, clean: CleanNetwork) -> Mapping[str, Any]:
        labels = self.extent.labels
        alone = {} if labels else {f"op:{op}": always(op) for op in OPS}
        policies = {name: each for name, each in self.policies().items() if not labels or name in labels} | alone
        return {"plain": clean.plain._asdict(), "of": {n: clean.measure(p)._asdict() for n, p in policies.items()}}


def _row(job: TrainJob, outcome: Outcome) -> dict[str, Any]:
    return {
        "label": job.label, "epochs": job.recipe.epochs, "on": job.split.name, "seed": job.seed, "error": outcome.error,
        "loss": outcome.loss, "train_loss": outcome.train_loss, "seconds": outcome.seconds, "failed": outcome.failed,
    }  # fmt: skip


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (row["label"], row["epochs"], row["on"], row["seed"])


def merged(old: Mapping[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """With the rows of an earlier record, and the policies that it was measured with, where the new one lacks them."""
    rows = {_key(row): row for row in [*old.get("rows", ()), *new["rows"]]}
    seen: dict[tuple[int, str], dict[str, Any]] = {}
    for each in [*old.get("seen", ()), *new["seen"]]:
        before = seen.get((each["epochs"], each["fold"]), {})
        seen[each["epochs"], each["fold"]] = {**each, "of": {**before.get("of", {}), **each["of"]}}
    return {**new, "rows": list(rows.values()), "seen": list(seen.values())}


def measure(
    data: Path,
    out: Path,
    network: str,
    device: str,
    minutes: float,
    only: str,
    have: Path | None,
    policies: Path | None = None,
    extent: Extent = ALL_OF_IT,
) -> None:
    end = time.time() + 60 * minutes
    old = json.loads(have.read_text())["sets"] if have else {}
    found = json.loads(policies.read_text())["sets"] if policies else {}
    files = [file for file in sorted(data.glob("*.npz")) if not only or file.stem in only.split(",")]
    searched = {file.stem: found.get(file.stem, {}).get("faster-aa") for file in files}
    sets = [SetMeasurement(file, out, network, device, searched[file.stem], extent) for file in files]
    for each in sets:
        began = time.time()
        each.searched()
        print(f"{each.name}: searched in {time.time() - began:.1f} s", flush=True)
    for jobs in zip(*(each.steps() for each in sets), strict=True):
        for each, some in zip(sets, jobs, strict=True):
            began = time.time()
            had = {_key(row) for row in old.get(each.name, {}).get("rows", ())}
            some = [job for job in some if (job.label, job.recipe.epochs, job.split.name, job.seed) not in had]
            done = sum(1 for _ in each.runner.run(some, until=end))
            print(f"{each.name}: {done} of {len(some)} trainings, {time.time() - began:.1f} s", flush=True)
    about = {"machine": device_name(device), "commit": commit(), "torch": torch.__version__, "network": network}
    content = {"about": about, "sets": {each.name: merged(old.get(each.name, {}), each.record()) for each in sets}}
    (out / "measured.json").write_text(json.dumps(content) + "\n")


# --- fitting ---------------------------------------------------------------------------------------------------------


ROOT = Path(__file__).resolve().parent.parent
PRIOR = ROOT / "src" / "fasteraa" / "selection" / "prior.json"
RACES = ROOT / "results" / "unseen" / "zoo.json"  # their losses on held-out training images, no test image


class Line(NamedTuple):
    """Features and what they are to predict, and the set that each row is from."""

    x: np.ndarray
    y: np.ndarray
    sets: np.ndarray


def policies_of(record: Mapping[str, Any]) -> dict[str, Policy]:
    return all_policies(Policy.from_json(json.dumps(record["faster-aa"])))


def effect_rows(content: Mapping[str, Any]) -> Line:
    """A row for each policy, set and length: the mean over folds."""
    x, y, sets = [], [], []
    for name, record in content["sets"].items():
        policies, rows = policies_of(record), {(row["label"], row["epochs"], row["on"]): row for row in record["rows"]}
        for label, policy in policies.items():
            for epochs in (SHORT, LONG) if label != "none" else ():
                features, effects = [], []
                for seen in (each for each in record["seen"] if each["epochs"] == epochs):
                    none, own = (rows.get((each, epochs, seen["fold"])) for each in ("none", label))
                    if none and own and not none["failed"] and not own["failed"]:
                        plain, augmented = Measured(**seen["plain"]), Measured(**seen["of"][label])
                        features.append(Traits.of(policy, plain, augmented, none["train_loss"]).features)
                        effects.append(math.log(own["loss"] / none["loss"]))
                if len(effects) > 1:
                    x.append(np.mean(features, 0))
                    y.append(np.mean(effects))
                    sets.append(name)
    return Line(np.array(x), np.array(y), np.array([set_of(name) for name in sets]))


def longer_rows(content: Mapping[str, Any]) -> Line:
    """A row for each policy, set and fold: what four times the length adds to a difference."""
    x, y, sets = [], [], []
    for name, record in content["sets"].items():
        rows = {(row["label"], row["epochs"], row["on"]): row for row in record["rows"] if not row["failed"]}
        for label, epochs, fold in rows:
            names = [(label, LONG, fold), ("none", SHORT, fold), ("none", LONG, fold)]
            if label == "none" or epochs != SHORT or not fold.startswith("fold") or not all(n in rows for n in names):
                continue
            own, long, none, none_long = (rows[each] for each in [(label, SHORT, fold), *names])
            difference = math.log(own["loss"] / none["loss"])
            unlearned = own["train_loss"] / own["loss"] - none["train_loss"] / none["loss"]
            x.append([difference, unlearned])
            y.append(math.log(long["loss"] / none_long["loss"]) - difference)
            sets.append(name)
    return Line(np.array(x), np.array(y), np.array([set_of(name) for name in sets]))


def learned_by_length(content: Mapping[str, Any]) -> float:
    """By how much what is unlearned without a policy falls with four times the length, within the range of `Traits`."""
    falls = []
    for record in content["sets"].values():
        rows = {
            (row["epochs"], row["on"]): row for row in record["rows"] if row["label"] == "none" and not row["failed"]
        }
        both = [
            (rows[SHORT, fold], rows[LONG, fold]) for epochs, fold in rows if epochs == LONG and (SHORT, fold) in rows
        ]
        falls += [_unlearned(short) - _unlearned(long) for short, long in both]
    return float(np.mean(falls))


def _unlearned(row: Mapping[str, Any]) -> float:
    plain = Measured(row["error"], row["error"], row["loss"])
    return Traits.of(named("none"), plain, plain, row["train_loss"]).unlearned


def ridge(x: np.ndarray, y: np.ndarray, level: bool) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Level, means, scales and weights of standardised features; without a level, of features as they are."""
    means, scales = (x.mean(0), x.std(0) + 1e-9) if level else (np.zeros(x.shape[1]), np.ones(x.shape[1]))
    z, centre = (x - means) / scales, y.mean() if level else 0.0
    return centre, means, scales, np.linalg.solve(z.T @ z + np.eye(x.shape[1]), z.T @ (y - centre))


def predicted_elsewhere(line: Line, level: bool) -> np.ndarray:
    """Of each set by the others."""
    values = np.zeros(len(line.y))
    for name in set(line.sets):
        rest, mine = line.sets != name, line.sets == name
        centre, means, scales, weights = ridge(line.x[rest], line.y[rest], level)
        values[mine] = centre + (line.x[mine] - means) / scales @ weights
    return values


def jackknife(line: Line) -> np.ndarray:
    """Covariance of level and weights, in the units of `ridge` on all of the line: how much they depend on the sets."""
    names = sorted(set(line.sets))
    _, means, scales, _ = ridge(line.x, line.y, True)
    fits = []
    for name in names:
        rest = line.sets != name
        level, own_means, own_scales, weights = ridge(line.x[rest], line.y[rest], True)
        slopes = weights / own_scales
        fits.append([level + (means - own_means) @ slopes, *slopes * scales])
    away = np.array(fits) - np.mean(fits, 0)
    return (len(names) - 1) / len(names) * away.T @ away


def parameter_variance(line: Line, x: np.ndarray) -> np.ndarray:
    """Of predictions at these features, by how much the fit depends on the sets: it grows away from what was seen."""
    _, means, scales, _ = ridge(line.x, line.y, True)
    z = np.hstack([np.ones((len(x), 1)), (x - means) / scales])
    return np.einsum("ij,jk,ik->i", z, jackknife(line), z)


def spread_parts(line: Line, residuals: np.ndarray) -> tuple[float, float]:
    """A variance that is always there, and how often that of the parameters counts: least squares on other sets."""
    variances = np.zeros(len(line.y))
    for name in set(line.sets):
        rest, mine = line.sets != name, line.sets == name
        variances[mine] = parameter_variance(Line(line.x[rest], line.y[rest], line.sets[rest]), line.x[mine])
    slope, floor = np.polyfit(variances, residuals**2, 1)
    return max(float(floor), 1e-4), max(float(slope), 1.0)


def errors_by_network(content: Mapping[str, Any]) -> Iterator[str]:
    """Of records of several networks: each set by the others, with the lines of other networks, its own, and all."""
    line = effect_rows(content)
    names = [name for name in content["sets"] for _ in range(_count(content, name))]
    networks = np.array([name.partition("@")[2] for name in names])
    yield "| network | no effect | lines of the other networks | its own | lines of all | n |"
    yield "|---" * 6 + "|"
    for network in dict.fromkeys(networks):
        mine, (nothing, by_others, by_own, by_all) = networks == network, np.zeros((4, len(line.y)))
        for name in set(line.sets[mine]):
            here, elsewhere = mine & (line.sets == name), line.sets != name
            for values, some in ((by_others, elsewhere & ~mine), (by_own, elsewhere & mine), (by_all, elsewhere)):
                level, means, scales, weights = ridge(line.x[some], line.y[some], True)
                values[here] = level + (line.x[here] - means) / scales @ weights
        errors = [np.sqrt(np.mean((line.y - each)[mine] ** 2)) for each in (nothing, by_others, by_own, by_all)]
        yield f"| {network} | {' | '.join(f'{each:.3f}' for each in errors)} | {mine.sum()} |"


def _count(content: Mapping[str, Any], name: str) -> int:
    return len(effect_keys({**content, "sets": {name: content["sets"][name]}}))


def _report(name: str, truth: np.ndarray, values: np.ndarray) -> str:
    rmse = float(np.sqrt(np.mean((truth - values) ** 2)))
    return f"| {name} | {rmse:.3f} | {np.mean((values < 0) == (truth < 0)):.0%} |"


def label_means(content: Mapping[str, Any], line: Line) -> np.ndarray:
    """What constants would say: the mean effect of the policy on the other sets, whatever the length."""
    of = np.array([label for label, _ in effect_keys(content)])
    return np.array([line.y[(of == of[i]) & (line.sets != line.sets[i])].mean() for i in range(len(of))])


def effect_keys(content: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The policy and the epochs of each of `effect_rows`."""
    return [
        (label, epochs)
        for record in content["sets"].values()
        for label in policies_of(record)
        if label != "none"
        for epochs in (SHORT, LONG)
        if sum(_has(record, label, epochs, each["fold"]) for each in record["seen"] if each["epochs"] == epochs) > 1
    ]


def _has(record: Mapping[str, Any], label: str, epochs: int, fold: str) -> bool:
    rows = {(row["label"], row["epochs"], row["on"]) for row in record["rows"] if not row["failed"]}
    return {("none", epochs, fold), (label, epochs, fold)} <= rows


def read_records(files: Sequence[Path]) -> dict[str, Any]:
    """One record of several: the sets of each network beside those of the others, named SET@NETWORK."""
    contents = [json.loads(file.read_text()) for file in files]
    networks = [content["about"]["network"] for content in contents]
    sets = {
        f"{name}@{network}" if len(files) > 1 else name: each
        for content, network in zip(contents, networks, strict=True)
        for name, each in content["sets"].items()
    }
    return {"about": {**contents[0]["about"], "network": ", ".join(networks)}, "sets": sets}


def set_of(name: str) -> str:
    """The images, whatever network was trained on them: they are left out together."""
    return name.partition("@")[0]


def without_sets(content: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The record as if these sets had not been measured."""
    known = set(map(set_of, content["sets"]))
    if missing := sorted(set(names) - known):
        raise SystemExit(f"no set {', '.join(missing)} was measured; there are {', '.join(sorted(known))}")
    return {**content, "sets": {name: each for name, each in content["sets"].items() if set_of(name) not in names}}


class Raced(NamedTuple):
    """A candidate in a recorded race with another network: what was predicted, and measured on held-out images."""

    set: str
    predicted: float
    measured: float  # logarithm of the loss relative to that of `none`
    noise: float


def raced_elsewhere(network: str, without: Collection[str] = ()) -> list[Raced]:
    """In races with any other."""
    races = [
        (name, search["race"])
        for name, record in json.loads(RACES.read_text())["sets"].items()
        if name not in without
        for search in record["searches"].values()
    ]
    return [
        Raced(name, row["expected"][0], *_measured_in(race, row))
        for name, race in races
        if race["network"] != network
        for row in race["table"]
        if "expected" in row and "failed" not in row
    ]


def _measured_in(race: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[float, float]:
    """On the folds of both, and one standard error of it."""
    none = next(each for each in race["table"] if each["candidate"] == "none")
    count = min(len(row["losses"]), len(none["losses"]))
    errors, scores = tuple(none["errors"][:count]), tuple(none["losses"][:count])
    trial = Trial(
        Candidate("none", named("none")),
        errors,
        scores=scores,
        images=min(count, race["folds"]) * race["images"] // race["folds"],
    )
    return float(np.mean(np.log(row["losses"][:count])) - np.mean(trial.logarithms)), trial.noise


def spread_elsewhere(rows: Sequence[Raced]) -> float:
    """How far no effect is off, one standard deviation, what noise explains left out."""
    return math.sqrt(max(np.mean([row.measured**2 - row.noise**2 for row in rows]), 1e-4))


def fitted(content: Mapping[str, Any]) -> dict[str, Any]:
    """The lines of a network, as the file has them."""
    effect, longer = effect_rows(content), longer_rows(content)
    elsewhere, later = predicted_elsewhere(effect, True), predicted_elsewhere(longer, False)
    level, means, scales, weights = ridge(effect.x, effect.y, True)
    floor, factor = spread_parts(effect, effect.y - elsewhere)
    *_, carried = ridge(longer.x, longer.y, False)
    return {
        "about": {**content["about"], "rows": len(effect.y), **_sets(effect=effect, longer=longer)},
        "effect": {
            "level": round(float(level), 5), "means": _rounded(means), "scales": _rounded(scales),
            "weights": _rounded(weights), "spread": round(math.sqrt(floor), 4),
            "covariance": [_rounded(row, 7) for row in factor * jackknife(effect)],
        },
        "longer": {
            "difference": round(float(carried[0]), 4), "unlearned": round(float(carried[1]), 4),
            "learned": round(learned_by_length(content), 4),
            "spread": round(float(np.sqrt(np.mean((longer.y - later) ** 2))), 4),
        },
    }  # fmt: skip


def prior_of(contents: Sequence[Mapping[str, Any]], without: Collection[str] = ()) -> dict[str, Any]:
    """Of records of a network each; races with others than the first say how far no effect is off."""
    networks = {content["about"]["network"]: fitted(content) for content in contents}
    elsewhere = spread_elsewhere(raced_elsewhere(next(iter(networks)), without))
    return {"networks": networks, "other networks": {"spread": round(elsewhere, 4)}}


def fit(files: Sequence[Path], without: Collection[str] = (), out: Path = PRIOR) -> None:
    every = without_sets(read_records(files), without)
    contents = [json.loads(file.read_text()) for file in files]
    contents = [without_sets(each, set(without) & each["sets"].keys()) for each in contents]
    out.write_text(json.dumps(prior_of(contents, without), indent=1) + "\n")
    for content in contents:
        print(f"\n# {content['about']['network']}\n")
        _report_lines(content)
    if len(files) > 1:
        print("\nerror of the log loss, each set by the others\n")
        print("\n".join(errors_by_network(every)))
    _report_elsewhere(raced_elsewhere(contents[0]["about"]["network"], without))


def _report_lines(content: Mapping[str, Any]) -> None:
    effect, longer = effect_rows(content), longer_rows(content)
    elsewhere, later = predicted_elsewhere(effect, True), predicted_elsewhere(longer, False)
    print(f"{len(effect.y)} effects on {len(set(effect.sets))} sets, each predicted by the others\n")
    print("| prediction | error of log loss | right sign |\n|---|---|---|")
    print(_report("no effect", effect.y, np.zeros(len(effect.y))))
    print(_report("the policy's mean effect on other sets", effect.y, label_means(content, effect)))
    print(_report("this prior", effect.y, elsewhere))
    truth = longer.y + longer.x[:, 0]
    print(f"\n{len(longer.y)} differences at four times the length, {len(set(longer.sets))} sets\n")
    print("| prediction | error of log loss | right sign |\n|---|---|---|")
    print(_report("as in the short training", truth, longer.x[:, 0]))
    print(_report("this line", truth, longer.x[:, 0] + later))


def _report_elsewhere(rows: Sequence[Raced]) -> None:
    """What the lines are worth for a network that they were not fitted to."""
    measured, predicted = (np.array([getattr(row, name) for row in rows]) for name in ("measured", "predicted"))
    sets, away = np.array([row.set for row in rows]), measured - predicted
    off = {name: np.mean(away[sets == name]) for name in sorted(set(sets))}
    moved = np.array([np.mean([each for other, each in off.items() if other != name]) for name in sets])
    print(f"\n{len(rows)} candidates in races with another network, {len(off)} sets\n")
    print("| prediction | error of log loss | right sign |\n|---|---|---|")
    print(_report("no effect", measured, np.zeros(len(rows))))
    print(_report("this prior", measured, predicted))
    print(_report("this prior, moved by its mean error on other sets", measured, predicted + moved))
    bias = np.mean(list(off.values()))
    print(f"\nmean error of this prior {bias:+.3f}; no effect without noise is off by {spread_elsewhere(rows):.3f}")


def _sets(**lines: Line) -> dict[str, list[str]]:
    return {f"sets of {name}": sorted(set(map(str, line.sets))) for name, line in lines.items()}


def _rounded(values: np.ndarray, digits: int = 5) -> list[float]:
    return [round(float(value), digits) for value in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    packing = commands.add_parser("pack")
    packing.add_argument("zoo", type=Path)
    packing.add_argument("data", type=Path)
    packing.add_argument("--pattern", default="*_64.zip", help="of the names of folders and zips")
    packing.add_argument("--images", type=int, default=700, help="training images of a set at most")
    packing.add_argument("--test-images", type=int, default=1000)
    packing.add_argument("--size", type=int, default=32)
    measuring = commands.add_parser("measure")
    measuring.add_argument("data", type=Path)
    measuring.add_argument("out", type=Path)
    measuring.add_argument("--network", default="wrn-16-2")
    measuring.add_argument("--device", default="auto")
    measuring.add_argument("--minutes", type=float, default=9.0)
    measuring.add_argument("--only", default="")
    measuring.add_argument(
        "--policies", type=Path, help="a record whose searched policies are taken: no set is searched"
    )
    measuring.add_argument("--labels", default="", help="policies to train with, with commas between them; all")
    measuring.add_argument("--folds", type=int, default=FOLDS)
    measuring.add_argument("--lengths", default=f"{SHORT},{LONG}", help="of trainings on folds, in epochs")
    measuring.add_argument("--no-test", action="store_true", help="no training that is measured on test images")
    measuring.add_argument("--have", type=Path, help="a record of before: what it holds is not trained again")
    fitting = commands.add_parser("fit")
    fitting.add_argument("files", type=Path, nargs="+")
    fitting.add_argument("--without", default="", help="sets to leave out, with commas between them")
    fitting.add_argument("--out", type=Path, default=PRIOR)
    given = parser.parse_args()
    if given.command == "pack":
        pack(given.zoo, given.data, given.pattern, given.images, given.test_images, given.size)
        return
    if given.command == "fit":
        fit(given.files, [name for name in given.without.split(",") if name], given.out)
        return
    find_device(given.device)
    lengths = tuple(int(each) for each in given.lengths.split(","))
    labels = tuple(each for each in given.labels.split(",") if each)
    extent = Extent(labels, given.folds, lengths, not given.no_test)
    where = (given.network, given.device, given.minutes)
    measure(given.data, given.out, *where, given.only, given.have, given.policies, extent)


if __name__ == "__main__":
    main()
