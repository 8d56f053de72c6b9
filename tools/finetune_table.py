"""What augmentation does to the fine-tuning of a pretrained network: the table of results/finetune.

    python tools/finetune_table.py DATA WEIGHTS OUT [--sets a,b] [--minutes 9]
    python tools/finetune_table.py --table results/finetune/table.json

DATA holds a folder of class folders for each set (train/ and test/ or val/). EfficientNet-Lite0 with ImageNet weights
at 224 pixels, 5 and 20 images of each class, about 300 steps, the learning rate from a grid on `none`. Finished runs
are in OUT and are not run again, so the table can be made in several calls.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import fasteraa
from fasteraa.train.recipe import TrainRecipe

NETWORK = "timm:tf_efficientnet_lite0"
POLICIES = ("none", "randaugment-m9", "trivialaugment-wide", "three-augment", "general-or-trivial")
SETS = {"animals10": 10, "dtd10": 10, "rsscn7": 7, "hymenoptera": 2}  # classes
SHOTS = (5, 20)
STEPS, BATCH, SEEDS = 300, 16, 3


def settings(images: int) -> dict[str, object]:
    """The same number of steps, whatever the number of images."""
    batch = min(BATCH, images)
    return {"epochs": max(1, round(STEPS / (images // batch))), "batch_size": batch}


def rows(data: Path, weights: str, out: Path, name: str, shots: int, end: float) -> None:
    images = shots * SETS[name]
    source, folder = data / name, out / f"{name}-{shots}"
    given = {"network": NETWORK, "weights": weights, "subset": images, "say": print}
    searched = folder / "search"
    began = time.time()
    if not (searched / "policy.json").exists():
        race = fasteraa.RaceConfig(
            network=NETWORK,
            weights=weights,
            minutes=0.75,
            epochs=int(settings(images)["epochs"]),  # type: ignore[call-overload]
            train={"batch_size": settings(images * 2 // 3)["batch_size"]},
        )
        config = fasteraa.SearchConfig(subset=images, batch_size=min(64, images - images % 2))
        fasteraa.search(source, config, race=race, out=searched, resume=(searched / "config.toml").exists())
        (searched / "seconds.json").write_text(json.dumps({"seconds": time.time() - began}) + "\n")
    compared = fasteraa.compare(
        source, [*POLICIES, f"raced={searched}"], out=folder, seeds=SEEDS, train=settings(images), tune_lr=True,
        minutes=max(0.0, (end - time.time()) / 60), **given,
    )  # fmt: skip
    probe = fasteraa.compare(
        source, "none", out=folder / "probe", seeds=SEEDS,
        train={**settings(images), "freeze": True, "learning_rate": 1e-2},
        minutes=max(0.0, (end - time.time()) / 60), **given,
    )  # fmt: skip
    table = {row.label: {"errors": dict(row.errors), "seconds": row.train_seconds} for row in compared.rows}
    for row in probe.rows:
        table["linear probe"] = {"errors": dict(row.errors), "seconds": row.train_seconds}
    recipe: TrainRecipe = compared.recipe
    known = {"set": name, "shots": shots, "images": images, "test_images": compared.held_out_images}
    seconds = json.loads((searched / "seconds.json").read_text())["seconds"]
    chosen = json.loads((searched / "result.json").read_text())["chosen"]
    content = {
        **known,
        "device": compared.device,
        "recipe": recipe.plain(),
        "search_seconds": seconds,
        "chosen": chosen,
    }
    (out / f"{name}-{shots}.json").write_text(json.dumps({**content, "table": table}, indent=1) + "\n")


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
    given = parser.parse_args()
    end = time.time() + 60 * given.minutes
    for shots in SHOTS:
        for name in given.sets.split(","):
            if time.time() < end:
                rows(given.data, given.weights, given.out, name, shots, end)


if __name__ == "__main__":
    main()
