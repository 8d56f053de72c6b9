"""What augmentation does to the fine-tuning of a pretrained network: the table of results/finetune.

    python tools/finetune_table.py DATA WEIGHTS OUT [--sets a,b] [--minutes 9] [--have results/finetune/table.json]
    python tools/finetune_table.py --table results/finetune/table.json

DATA holds a folder of class folders (train/ and test/ or val/), or a zip of it, for each set. EfficientNet-Lite0 with
ImageNet weights at 224 pixels, 5 and 20 images of each class, about 300 steps, the learning rate from a grid on `none`.
Finished runs are in OUT and are not run again, so the table can be made in several calls. Of an earlier table
(`--have`) errors and learning rates are taken over, and only what was searched is trained with.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fasteraa
from fasteraa._version import commit
from fasteraa.runtime.progress import Lines
from fasteraa.train.recipe import TrainRecipe

NETWORK = "timm:tf_efficientnet_lite0"
POLICIES = ("none", "randaugment-m9", "trivialaugment-wide", "three-augment", "general-or-trivial")
SETS = {"animals10": 10, "dtd10": 10, "rsscn7": 7, "hymenoptera": 2}  # classes
SHOTS = (5, 20)
STEPS, BATCH, SEEDS = 300, 16, 3
RACE_MINUTES = 0.4


def settings(images: int) -> dict[str, object]:
    """The same number of steps, whatever the number of images."""
    batch = min(BATCH, images)
    return {"epochs": max(1, round(STEPS / (images // batch))), "batch_size": batch}


def source_of(data: Path, name: str, scratch: Path) -> Path:
    """A folder of train/ and test/, or what is in its zip."""
    files = sorted(data.glob(f"{name}_*.zip"))
    if (data / name).is_dir() or not files:
        return data / name
    with zipfile.ZipFile(files[-1]) as file:
        file.extractall(scratch / name)
    return scratch / name


def rows(data: Path, weights: str, out: Path, name: str, shots: int, end: float, had: dict[str, Any]) -> None:
    images = shots * SETS[name]
    folder = out / f"{name}-{shots}"
    given = {"network": NETWORK, "weights": weights, "subset": images, "progress": Lines()}
    with TemporaryDirectory() as scratch:
        source = source_of(data, name, Path(scratch))
        rate = had.get("recipe", {}).get("learning_rate")  # of the grid, on held-out training images
        seconds = searched(source, folder / "search", weights, images, {} if rate is None else {"learning_rate": rate})
        chosen = json.loads((folder / "search" / "result.json").read_text())["chosen"]
        table = dict(had.get("table", {}))
        if chosen in table:  # the very policy: its errors are there
            table["raced"] = table[chosen]
        policies = [each for each in POLICIES if each not in table]
        policies += [] if chosen in table else [f"raced={folder / 'search'}"]
        train = {**settings(images), **({} if rate is None else {"learning_rate": rate})}
        about = {**had}
        if policies:
            compared = fasteraa.compare(
                source, policies, out=folder, seeds=SEEDS, train=train, tune_lr="none" if rate is None else False,
                minutes=max(0.0, (end - time.time()) / 60), **given,
            )  # fmt: skip
            table |= {row.label: {"errors": dict(row.errors), "seconds": row.train_seconds} for row in compared.rows}
            recipe: TrainRecipe = compared.recipe
            known = {"set": name, "shots": shots, "images": images, "test_images": compared.held_out_images}
            about = {
                **known,
                "device": compared.device,
                "recipe": {**recipe.plain(), "weights": Path(weights).name},
                **about,
            }
        if "linear probe" not in table:
            probe = fasteraa.compare(
                source, "none", out=folder / "probe", seeds=SEEDS,
                train={**settings(images), "freeze": True, "learning_rate": 1e-2},
                minutes=max(0.0, (end - time.time()) / 60), **given,
            )  # fmt: skip
            for row in probe.rows:
                table["linear probe"] = {"errors": dict(row.errors), "seconds": row.train_seconds}
    race = json.loads((folder / "search" / "policy.json").read_text())["provenance"].get("race", {})
    content = {**about, "search_seconds": seconds, "chosen": chosen, "race": race, "commit": commit(), "table": table}
    (out / f"{name}-{shots}.json").write_text(json.dumps(content, indent=1) + "\n")


def searched(source: Path, folder: Path, weights: str, images: int, train: dict[str, float]) -> float:
    """The search, unless it is there; its seconds."""
    if not (folder / "seconds.json").exists():
        began = time.time()
        race = fasteraa.RaceConfig(
            network=NETWORK,
            weights=weights,
            minutes=RACE_MINUTES,
            epochs=int(settings(images)["epochs"]),  # type: ignore[call-overload]
            train={"batch_size": settings(images * 2 // 3)["batch_size"], **train},
        )
        config = fasteraa.SearchConfig(subset=images, batch_size=min(64, images - images % 2))
        resume = (folder / "config.toml").exists()
        fasteraa.search(source, config, race=race, out=folder, resume=resume, minutes=1.3 * RACE_MINUTES)
        (folder / "seconds.json").write_text(json.dumps({"seconds": time.time() - began}) + "\n")
    return float(json.loads((folder / "seconds.json").read_text())["seconds"])


def markdown(file: Path) -> str:
    """Mean errors; the last row is the mean rank of full fine-tunings over the columns."""
    content = json.loads(file.read_text())
    labels = [*POLICIES, "raced", "linear probe"]
    means = {
        key: {label: sum(row["table"][label]["errors"].values()) / SEEDS for label in labels}
        for key, row in content.items()
    }
    head = ["set", "images a class", *labels, "chosen by the race", "search, s", "one training, s"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for key, row in content.items():
        cells = [f"{means[key][label]:.1f}" for label in labels]
        times = [f"{row['search_seconds']:.0f}", f"{row['table']['none']['seconds']:.1f}"]
        lines.append("| " + " | ".join([row["set"], str(row["shots"]), *cells, row["chosen"], *times]) + " |")
    ranks = dict.fromkeys(labels[:-1], 0.0)
    for each in means.values():
        order = sorted(ranks, key=lambda label: each[label])
        for label in ranks:
            ties = [place for place, other in enumerate(order, 1) if each[other] == each[label]]
            ranks[label] += sum(ties) / len(ties) / len(means)
    mean_ranks = [f"{ranks[label]:.1f}" for label in ranks]
    lines.append("| " + " | ".join(["mean rank", "", *mean_ranks, "", "", "", ""]) + " |")
    return "\n".join(lines)


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "--table":
        print(markdown(Path(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("weights")
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--have", type=Path, help="an earlier table")
    given = parser.parse_args()
    had = json.loads(given.have.read_text()) if given.have else {}
    end = time.time() + 60 * given.minutes
    given.out.mkdir(parents=True, exist_ok=True)
    for shots in SHOTS:
        for name in given.sets.split(","):
            if time.time() < end:
                earlier = {key: value for key, value in had.get(f"{name}-{shots}", {}).items() if key != "race"}
                earlier["table"] = {key: value for key, value in earlier.get("table", {}).items() if key != "raced"}
                rows(given.data, given.weights, given.out, name, shots, end, earlier if given.have else {})
                table = {file.stem: json.loads(file.read_text()) for file in sorted(given.out.glob("*-*.json"))}
                (given.out / "table.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
