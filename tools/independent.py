"""Is the policy of a search better than those that need none? In an independent training loop, on the worst set first.

    python tools/independent.py draw SOURCES DATA      # twelve cuts of usual sets
    python tools/independent.py search DATA OUT        # `fasteraa search` on two cores, one set after the other
    python tools/independent.py train DATA OUT [--device cuda --workers 14]    # every policy, tools/loop.py
    python tools/independent.py table results/unseen/independent.json

SOURCES holds whole sets, NAME.npz each (x_train, y_train, x_test, y_test): cifar10, cifar100, cifar100coarse, svhn,
fashion, mnist, and imagenette at 40 pixels. DATA has that format, too: `tools/prior.py pack` makes more. The prior of
each search was fitted without that set and without its source. What is finished is in OUT and is not done again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import loop
import numpy as np
import prior
import torch
import unseen

import fasteraa
from fasteraa._version import commit
from fasteraa.runtime.device import device_name

SEARCHED = unseen.SEARCHES[1]
NAMED = ("none", "trivialaugment-wide", "randaugment-2-14", "autoaugment-cifar10")
SEEDS = 3
EPOCHS = 120  # of sets that are not drawn here


class Cut(NamedTuple):
    """Some images of a usual set."""

    source: str
    images: int
    epochs: int
    classes: tuple[int, ...] | int = ()  # these, or so many drawn ones, or all
    grey: bool = False


CUTS = {
    "svhn300": Cut("svhn", 300, 160),
    "svhnodd400": Cut("svhn", 400, 120, (1, 3, 5, 7, 9)),
    "deerhorse600": Cut("cifar10", 600, 80, (4, 7)),
    "vehicles4cifar320": Cut("cifar10", 320, 150, (0, 1, 8, 9)),
    "grey500": Cut("cifar10", 500, 100, grey=True),
    "cifar100twelve480": Cut("cifar100", 480, 100, 12),
    "coarse800": Cut("cifar100coarse", 800, 80),
    "fashion250": Cut("fashion", 250, 200),
    "tops360": Cut("fashion", 360, 130, (0, 2, 4, 6)),
    "shoes200": Cut("fashion", 200, 220, (5, 7, 8, 9)),
    "mnist200": Cut("mnist", 200, 220),
    "imagenette350": Cut("imagenette", 350, 130, 5),
}
_TEST, _DRAW = 1_500, 20_261_119  # images at most; the seed


# --- drawing ---------------------------------------------------------------------------------------------------------


def draw(sources: Path, data: Path) -> None:
    data.mkdir(parents=True, exist_ok=True)
    for number, (name, cut) in enumerate(CUTS.items()):
        content, random = np.load(sources / f"{cut.source}.npz"), np.random.default_rng([_DRAW, number])
        there = np.unique(content["y_train"])
        classes = random.choice(there, cut.classes, replace=False) if isinstance(cut.classes, int) else cut.classes
        chosen = np.sort(np.array(classes if len(classes) else there))
        arrays: dict[str, np.ndarray] = {}
        for part, most in (("train", cut.images), ("test", _TEST)):
            x, y = content[f"x_{part}"], content[f"y_{part}"]
            kept = evenly(y, chosen, most, random)
            arrays[f"x_{part}"] = as_grey(x[kept]) if cut.grey else x[kept]
            arrays[f"y_{part}"] = np.searchsorted(chosen, y[kept])
        np.savez_compressed(data / f"{name}.npz", **arrays)
        print(f"{name}: {len(arrays['y_train'])} training images, {len(arrays['y_test'])} test images", flush=True)


def evenly(labels: np.ndarray, classes: np.ndarray, most: int, random: np.random.Generator) -> np.ndarray:
    """Places of images, about as many of each class."""
    places = [random.permutation(np.flatnonzero(labels == each)) for each in classes]
    least = [np.arange(len(each)) for each in places]
    order = np.lexsort((random.random(sum(map(len, places))), np.concatenate(least)))
    return np.sort(np.concatenate(places)[order[:most]])


def as_grey(images: np.ndarray) -> np.ndarray:
    return np.repeat(images.mean(3, keepdims=True).round().astype(np.uint8), 3, 3)


# --- searching -------------------------------------------------------------------------------------------------------


def search(data: Path, out: Path, minutes: float, trainings: int, extra: Sequence[str]) -> None:
    plan = unseen.Plan(
        data.resolve(), out.resolve(), unseen.MEASURED, "cpu", "", 0, {SEARCHED: minutes}, False, time.time() + 1e6,
        tuple(extra), {}, trainings,
    )  # fmt: skip
    for file in sorted(data.glob("*.npz")):
        unseen.fit_without(plan, file.stem, CUTS[file.stem].source if file.stem in CUTS else "")
        unseen.search(plan, file.stem, SEARCHED, "")


# --- training --------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """One training of the independent loop."""

    name: str
    file: str
    label: str
    policy: str  # a name, or the folder of a search
    hash: str
    seed: int
    epochs: int
    device: str

    @property
    def key(self) -> tuple[str, str, int]:
        return self.name, self.hash, self.seed


def begin_worker() -> None:
    torch.set_num_threads(1)


def trained(run: Run) -> dict[str, Any]:
    began = time.perf_counter()
    flip = not prior.is_upright(run.name)
    error, loss = loop.train(
        loop.load_images(run.file), loop.augmentation(run.policy), run.epochs, flip, run.seed, run.device
    )
    return {
        "label": run.label, "seed": run.seed, "error": round(error, 3), "training_loss": round(loss, 4),
        "seconds": round(time.perf_counter() - began, 1), "hash": run.hash,
    }  # fmt: skip


def train(data: Path, out: Path, device: str, workers: int, seeds: int, minutes: float) -> None:
    file, end = out / "independent.json", time.time() + 60 * minutes
    old = json.loads(file.read_text())["sets"] if file.exists() else {}
    sets = {name: record_of(data / f"{name}.npz", out, old.get(name, {})) for name in names_of(data)}
    runs = list(missing(sets, data, out, device, seeds))
    print(f"{len(runs)} trainings", flush=True)
    about = {"machine": device_name(device), "commit": commit(), "torch": torch.__version__, "loop": "tools/loop.py"}
    pool = ProcessPoolExecutor(workers, get_context("spawn"), begin_worker)
    waiting = {pool.submit(trained, run): run for run in runs}
    try:
        for done in as_completed(waiting, timeout=max(1.0, end - time.time())):
            sets[waiting[done].name]["rows"].append(done.result())
            write(file, about, sets)
    except TimeoutError:
        print("time is up", flush=True)
    finally:
        for process in list(pool._processes.values()):
            process.kill()
    write(file, about, sets)


def write(file: Path, about: Mapping[str, Any], sets: Mapping[str, dict[str, Any]]) -> None:
    for record in sets.values():  # with what was searched under its name, whatever it chose
        record["errors"] = errors_of(record)
    file.write_text(json.dumps({"about": about, "sets": sets}, indent=1) + "\n")


def names_of(data: Path) -> list[str]:
    return [file.stem for file in sorted(data.glob("*.npz"))]


def record_of(file: Path, out: Path, old: Mapping[str, Any]) -> dict[str, Any]:
    content = np.load(file)
    record = {
        "images": len(content["y_train"]), "test_images": len(content["y_test"]),
        "epochs": CUTS[file.stem].epochs if file.stem in CUTS else EPOCHS, "drawn": file.stem in CUTS,
    }  # fmt: skip
    search = out / file.stem / "cpu"
    if (search / "seconds.json").exists():
        policy = json.loads((search / "policy.json").read_text())
        took = json.loads((search / "seconds.json").read_text())
        found = {"chosen": policy["name"], "hash": fasteraa.load(search / "policy.json").hash}
        record["search"] = {**took, **found, "race": policy.get("provenance", {}).get("race", {})}
    return {**record, "rows": old.get("rows", [])}


def missing(sets: Mapping[str, Any], data: Path, out: Path, device: str, seeds: int) -> Iterator[Run]:
    """One seed of all sets after the other. A search that chose a policy of the table is not trained again."""
    known = {(name, row["hash"], row["seed"]) for name, record in sets.items() for row in record["rows"]}
    for seed in range(seeds):
        for name, record in sets.items():
            policies = {label: label for label in NAMED}
            if "search" in record and record["search"]["chosen"] not in NAMED:
                policies[SEARCHED] = str(out / name / "cpu")
            for label, policy in policies.items():
                about = seed, record["epochs"], device
                run = Run(name, str(data / f"{name}.npz"), label, policy, fasteraa.load(policy).hash, *about)
                if run.key not in known:
                    yield run


# --- the table -------------------------------------------------------------------------------------------------------


def errors_of(record: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """Label -> seed -> error, the search among them: of the policy that it chose, whatever was trained before."""
    search = record.get("search", {})
    rows = [row for row in record["rows"] if row["label"] != SEARCHED or row["hash"] == search.get("hash")]
    errors, chosen = unseen.errors_of({"rows": rows}), search.get("chosen")
    if chosen in errors:
        errors[SEARCHED] = errors[chosen]
    return errors


def table(content: Mapping[str, Any]) -> Iterator[str]:
    """Cuts of usual sets, then the others, the worst for the search first."""
    labels = ("none", SEARCHED, *NAMED[1:])
    for drawn in (True, False):
        some = {name: errors_of(each) for name, each in content["sets"].items() if each["drawn"] == drawn}
        if not some:
            continue
        yield from unseen.summary(some, labels)
        yield ""
        yield f"| set | images, epochs | {' | '.join(labels)} | chosen | n |"
        yield "|---" * (len(labels) + 4) + "|"
        for name in sorted(some, key=lambda name: -unseen.worst(some[name], [SEARCHED])):
            record = content["sets"][name]
            cells = [unseen.cell(some[name], label) for label in labels]
            about = f"{record['images']}, {record['epochs']}"
            seeds = min(len(errors) for errors in some[name].values())
            yield f"| {name} | {about} | {' | '.join(cells)} | {record.get('search', {}).get('chosen', '')} | {seeds} |"
        yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    drawing = commands.add_parser("draw")
    drawing.add_argument("sources", type=Path)
    drawing.add_argument("data", type=Path)
    searching, training = commands.add_parser("search"), commands.add_parser("train")
    for each in (searching, training):
        each.add_argument("data", type=Path)
        each.add_argument("out", type=Path)
    searching.add_argument("--race-minutes", type=float, default=1.5)
    searching.add_argument("--race-trainings", type=int, default=0, help="in the place of minutes")
    searching.add_argument("--extra", default="", help="more words for fasteraa search")
    training.add_argument("--device", default="cpu")
    training.add_argument("--workers", type=int, default=2)
    training.add_argument("--seeds", type=int, default=SEEDS)
    training.add_argument("--minutes", type=float, default=1e4)
    tabling = commands.add_parser("table")
    tabling.add_argument("file", type=Path)
    given = parser.parse_args()
    if given.command == "draw":
        draw(given.sources, given.data)
    elif given.command == "search":
        search(given.data, given.out, given.race_minutes, given.race_trainings, given.extra.split())
    elif given.command == "train":
        train(given.data, given.out, given.device, given.workers, given.seeds, given.minutes)
    else:
        print("\n".join(table(json.loads(given.file.read_text()))))


if __name__ == "__main__":
    main()
