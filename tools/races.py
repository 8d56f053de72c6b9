"""Do races foretell long trainings? Those of the calibrated searches in results/quality and results/unseen.

    python3 tools/races.py

For every policy that was both raced (short trainings, by the loss on images held back) and trained long (by the error
on the test images): how far it is behind the chosen one, in % (natural logarithms), and its training loss in the race.
Then a line through what the long training adds to the race, over the training loss: whether policies that are harder
to fit gain by longer trainings of larger networks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).resolve().parent.parent / "results"
QUALITY, UNSEEN = RESULTS / "quality", RESULTS / "unseen"
FEW_ERRORS = 5.0  # % of `none`: a race that holds 100 images back then sees a handful
# data set -> searches on it, classes, whose policy of AutoAugment's is in the table
SETS = {
    "reduced-cifar100": ("cifar100-4000", 100, "autoaugment-cifar10"),
    "reduced-cifar10": ("cifar10-4000", 10, "autoaugment-cifar10"),
    "reduced-svhn": ("svhn-1000", 10, "autoaugment-svhn"),
    "fashion-300": ("fashion-mnist-300", 10, None),
    "fashion-1000": ("fashion-mnist-1000", 10, None),
    "fashion-4000": ("fashion-mnist-4000", 10, None),
    "imagenette-1000": ("imagenette-1000", 10, "autoaugment-imagenet"),
    "ants-and-bees": ("ants-and-bees-all", 2, "autoaugment-imagenet"),
}
NAMES = {
    "none": "none",
    "randaugment(2,14)": "RandAugment (2, 14)",
    "trivialaugment-wide": "TrivialAugment (wide)",
    "uniform": "uniform",
}
FOUND, CHOSEN = "Faster AA, floor on diversity", "calibrated search"  # another one for each seed


def main() -> None:
    table = json.loads((QUALITY / "table.json").read_text())
    for data, (searches, classes, autoaugment) in SETS.items():
        lines = [line for line in table["lines"] if line["data"] == data]
        errors = {line["label"]: {int(seed): error for seed, error in line["values"].items()} for line in lines}
        labels = NAMES | ({autoaugment: "AutoAugment"} if autoaugment else {})
        files = sorted((QUALITY / "searches").glob(f"{searches}-*/calibrated.json"))
        rows = [row for file in files for row in compared(json.loads(file.read_text()), labels, errors)]
        print(data)
        for seed, label, short, long, loss, _ in rows:
            print(f"  search {seed}, {label:24} race {short:+5.1f}%, long {long:+5.1f}%, training loss {loss:.2f}")
        told = np.array([row[2:] for row in rows if row[1] != "none"])
        fitted(told[:, 1] - told[:, 0], told[:, 2] - told[:, 3], classes)
    trained_in_full()
    unseen()


def compared(
    policy: dict[str, Any], labels: dict[str, str], errors: dict[str, dict[int, float]]
) -> list[tuple[Any, ...]]:
    """Seed, label, behind in the race and in the long training, training loss, that of the chosen one."""
    found = policy["provenance"]["calibration"]
    seed, trials = policy["provenance"]["config"]["seed"], {trial["candidate"]: trial for trial in found["table"]}
    if seed not in errors[CHOSEN]:
        return []  # searched, not trained yet
    chosen = trials[found["chosen"]]
    rows = []
    for name, trial in trials.items():
        if name in labels and name != found["chosen"]:
            error = float(np.mean(list(errors[labels[name]].values())))
        elif name == "found" and seed in errors[FOUND]:
            error = errors[FOUND][seed]
        else:
            continue
        long = np.log(error / errors[CHOSEN][seed])
        rows.append(
            (seed, name, 100 * raced(trial, chosen), 100 * long, trial["training_loss"], chosen["training_loss"])
        )
    return rows


def raced(trial: dict[str, Any], other: dict[str, Any]) -> float:
    """How much more loss one has than the other, in natural logarithms, on the folds that both had."""
    folds = min(len(trial["losses"]), len(other["losses"]))
    return float(np.mean(np.log(np.divide(trial["losses"][:folds], other["losses"][:folds]))))


def trained_in_full() -> None:
    """Races of which every candidate was trained: what the choice was worth, and what the race knew of the others."""
    print("every candidate trained once")
    for data, races in json.loads((QUALITY / "raced.json").read_text()).items():
        searches, classes, _ = SETS[data]
        for seed, errors in races.items():
            file = next((QUALITY / "searches").glob(f"{searches}-diverse-L10-K2-{seed}-*/calibrated.json"))
            found = json.loads(file.read_text())["provenance"]["calibration"]
            trials = {trial["candidate"]: trial for trial in found["table"]}
            chosen = trials[found["chosen"]]
            others = [label for label in trials if label not in ("none", found["chosen"])]
            mine, best = errors[found["chosen"]], min(errors, key=lambda label: errors[label])
            first, last = (
                sum(mine > each for each in errors.values()) + 1,
                sum(mine >= each for each in errors.values()),
            )
            behind = [raced(trial, chosen) for trial in trials.values()]
            alike = np.corrcoef(ranks(behind), ranks([errors[label] for label in trials]))[0, 1]
            print(
                f"  {data}, search {seed}: {found['chosen']} {mine:.2f}, place {first} to {last} of {len(errors)}; "
                f"{best} {errors[best]:.2f}; middling {np.median(list(errors.values())):.2f}, trivialaugment-wide "
                f"{errors['trivialaugment-wide']:.2f}; rank correlation {alike:.2f}"
            )
            added = [100 * (np.log(errors[label] / mine) - raced(trials[label], chosen)) for label in others]
            harder = [trials[label]["training_loss"] - chosen["training_loss"] for label in others]
            fitted(np.array(added), np.array(harder), classes)


def ranks(values: Sequence[float]) -> np.ndarray:
    """Equal values share theirs."""
    found = np.array(values)
    return np.array([np.sum(found < each) + np.sum(found == each) / 2 for each in found])


def unseen() -> None:
    """Another's loop: what it adds to the distance from `none` over the training loss, in units of that of guessing."""
    races, trained = (json.loads((UNSEEN / f"{name}.json").read_text()) for name in ("races", "errors"))
    harder, added = [], []
    print("unseen, from none")
    for name, race in races.items():
        errors, trials = trained[name]["errors"], {trial["candidate"]: trial for trial in race["table"]}
        if np.mean(list(errors["none"].values())) < FEW_ERRORS:
            continue
        for label, trial in trials.items():
            if label != "none" and (long := between(errors, label, "none")) is not None:
                short = raced(trial, trials["none"])
                harder.append((trial["training_loss"] - trials["none"]["training_loss"]) / np.log(race["classes"]))
                added.append(long - 100 * short)
                print(f"  {name:12} {label:20} race {100 * short:+6.1f}%, loop {long:+6.1f}%, harder {harder[-1]:.2f}")
    x, y = np.array(harder), np.array(added)
    slope = x @ y / (x @ x)
    error = np.sqrt(np.sum((y - slope * x) ** 2) / (len(x) - 1) / (x @ x))
    print(f"  the loop adds {slope:+.0f}% a loss of guessing (standard error {error:.0f}, n {len(x)})")
    for one in ("general or any one", "general", "trivialaugment-wide"):
        for other in ("general", "trivialaugment-wide", "none"):
            found = {name: between(each["errors"], one, other) for name, each in trained.items()}
            known = {name: difference for name, difference in found.items() if difference is not None}
            if one != other:
                each = ", ".join(f"{name} {difference:+.0f}" for name, difference in known.items())
                print(f"  {one} against {other}: {np.mean(list(known.values())):+.1f}% ({each})")


def between(errors: dict[str, dict[str, float]], one: str, other: str) -> float | None:
    """How much more errors one has than the other, in %, of the seeds that both have."""
    seeds = errors.get(one, {}).keys() & errors.get(other, {}).keys()
    ratios = [np.log(errors[one][seed] / errors[other][seed]) for seed in sorted(seeds)]
    return 100 * float(np.mean(ratios)) if ratios else None


def fitted(added: np.ndarray, harder: np.ndarray, classes: int) -> None:
    columns = np.stack([harder, np.ones_like(harder)], 1)
    slope, lead = np.linalg.lstsq(columns, added, rcond=None)[0]
    rest = added - columns @ (slope, lead)
    error = np.sqrt(rest @ rest / (len(added) - 2) * np.linalg.inv(columns.T @ columns)[0, 0])
    guessing = np.log(classes)
    print(
        f"  the long training adds {slope:+.1f}% a unit of training loss (standard error {error:.1f}, n {len(added)}),"
        f" which is {slope * guessing:+.0f}% a loss of guessing, and {lead:+.1f}% for all but the chosen one"
    )


if __name__ == "__main__":
    main()
