"""What the README shows: its picture, the output of its commands, and its table, all made from files of this checkout.

`tools/generate.py` calls it. The photographs in docs/readme come from scikit-image (see LICENCES.txt there); a recorded
search (docs/readme/first) is summarised by the code as it is now, so that no training is needed to notice a stale page.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fasteraa.cli.tables import markdown_table
from fasteraa.images import to_pillow
from fasteraa.methods import Candidate, Expected
from fasteraa.methods.op_effects import Effects
from fasteraa.methods.task import FOLDS
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.report.preview import augmented
from fasteraa.report.summary import summarise
from fasteraa.selection.ranking import Trial
from fasteraa.selection.result import RaceResult, Result
from fasteraa.selection.schedule import Round
from fasteraa.train.recipe import TrainRecipe

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "readme"
PICTURE = FOLDER / "picture.jpg"
PHOTOS = ("chelsea", "coffee", "astronaut")
OPERATIONS = (("rotate", 0.6), ("shear_x", 0.9), ("solarize", 0.5), ("color", 1.0), ("equalize", None))
DRAWS, SEED = 4, 11
TILE, GAP, HEAD, FOOT = 96, 4, 40, 30
STEP = TILE + GAP + FOOT  # from one row to the next; what was done stands under an image
LEVELS = 8  # by which JPEG changes the levels of a tile on average, at most

# --- the picture -----------------------------------------------------------------------------------------------------


def tiles() -> list[list[tuple[Tensor, list[str]]]]:
    """A row for each photograph: the original, each operation alone, draws of the policy with what was done."""
    photos = [torch.from_numpy(np.array(Image.open(FOLDER / f"{name}.png"))).movedim(-1, 0) for name in PHOTOS]
    batch = torch.stack(photos)
    alone = [Policy((SubPolicy(((Choice(op, 1.0, size),),)),)) for op, size in OPERATIONS]
    generator = torch.Generator().manual_seed(SEED)
    shown = [batch, *(each(batch, generator) for each in alone)]
    columns = [(images, [[]] * len(photos)) for images in shown]
    columns += [augmented(chosen(), batch, len(photos), generator) for _ in range(DRAWS)]
    return [[(images[row], words[row]) for images, words in columns] for row in range(len(photos))]


def chosen() -> Policy:
    """Of the recorded search."""
    return Policy.load(FOLDER / "first" / "policy.json")


def places() -> list[int]:
    """Where columns begin; the three groups stand apart."""
    groups = [0] + [1] * len(OPERATIONS) + [2] * DRAWS
    return [GAP + number * (TILE + GAP) + 5 * GAP * group for number, group in enumerate(groups)]


def draw() -> Image.Image:
    rows, left = tiles(), places()
    sheet = Image.new("RGB", (left[-1] + TILE + GAP, HEAD + len(rows) * STEP), "white")
    pen, large, small = ImageDraw.Draw(sheet), ImageFont.load_default(14), ImageFont.load_default(11)
    for column, words in (
        (0, "originals"),
        (1, "what operations do"),
        (1 + len(OPERATIONS), f"what a chosen policy does: {chosen().name}"),
    ):
        pen.text((left[column], 2), words, "black", large)
    for column, (op, _) in enumerate(OPERATIONS, 1):
        pen.text((left[column], 22), op, "#59636e", small)
    for number, row in enumerate(rows):
        for column, (tile, words) in enumerate(row):
            top = HEAD + number * STEP
            sheet.paste(to_pillow(tile), (left[column], top))
            for line, deed in enumerate(words if column < len(row) - DRAWS else words or ["unchanged"]):
                pen.text((left[column], top + TILE + 1 + 13 * line), deed, "#59636e", small)
    return sheet


def same(drawn: Image.Image, kept: Image.Image) -> bool:
    """Every tile alike, but for what JPEG loses; letters differ from one version of Pillow to another."""
    if drawn.size != kept.size:
        return False
    boxes = [(x, y, x + TILE, y + TILE) for x in places() for y in range(HEAD, HEAD + len(PHOTOS) * STEP, STEP)]
    return all(_gap(drawn.crop(box), kept.crop(box)) <= LEVELS for box in boxes)


def _gap(one: Image.Image, other: Image.Image) -> float:
    return float(np.abs(np.asarray(one, int) - np.asarray(other.convert("RGB"), int)).mean())


def stale(write: bool) -> list[Path]:
    drawn = draw()
    if PICTURE.exists() and same(drawn, Image.open(PICTURE)):
        return []
    if write:
        drawn.save(PICTURE, quality=92, subsampling=0)
    return [PICTURE]


# --- the outputs -----------------------------------------------------------------------------------------------------


def recorded_result() -> Result:
    """The search in docs/readme/first, as far as its summary needs it."""
    policy = chosen()
    found = json.loads((FOLDER / "first" / "result.json").read_text(encoding="utf-8"))
    kept = policy.provenance["race"]
    trials = tuple(_trial(row, policy, kept["images"] // kept["folds"]) for row in kept["table"])
    race = RaceResult(
        trials[0],
        trials,
        kept["folds"],
        TrainRecipe(network=kept["network"], epochs=kept["epochs"]),
        float("nan"),
        kept["images"],
        kept["all_images"],
        tuple(Round(each["runs"], each["epochs"]) for each in kept["rounds"]),
        counted=True,
    )
    effects = found["effects"] and Effects(
        {op: pair[0] for op, pair in found["effects"]["of"].items()},
        {op: pair[1] for op, pair in found["effects"]["of"].items()},
        found["effects"]["reach"],
        found["effects"]["trainings"],
    )
    data = cast(Any, SimpleNamespace(masks=None))
    return Result(policy, tuple(t.candidate for t in trials), data, Path("runs/first"), race, effects)


def _trial(row: dict[str, Any], policy: Policy, images: int) -> Trial:
    candidate = Candidate(row["candidate"], policy, Expected(*row["expected"]) if "expected" in row else None)
    loss = row["training_loss"]
    return Trial(
        candidate,
        tuple(row["errors"]),
        () if loss is None else (loss,),
        tuple(row["losses"]),
        images * min(len(row["errors"]), FOLDS),
        failed=row.get("failed"),
    )


def command(line: str, **really: Path) -> str:
    """A command and what it prints; `really` says where the folders and files of the line are, by their stems."""
    from typer.testing import CliRunner

    from fasteraa.cli.app import app

    words = [str(really.get(Path(word).stem, word)) for word in shlex.split(line)[1:]]
    text = CliRunner().invoke(app, words, catch_exceptions=False).output.rstrip()
    for name, path in really.items():
        text = text.replace(str(path), next((w for w in shlex.split(line) if Path(w).stem == name), name))
    return f"$ {line}\n{text}"


def recorded() -> dict[str, str]:
    """The command of the recorded search, and where it ran. `make test-slow` runs it again with the recorded trainings
    (race/runs.json). Another search takes its place with the files of its run folder, its trainings packed
    (`fasteraa.train.run_cache.pack`), and its command here.
    """
    about: dict[str, str] = json.loads((FOLDER / "first" / "about.json").read_text(encoding="utf-8"))
    return about


def where() -> str:
    return recorded()["where"]


def outputs() -> str:
    """Four commands and what they print."""
    run = FOLDER / "first"
    with TemporaryDirectory() as folder:
        file = Path(folder) / "augment.py"
        exported = command("fasteraa export runs/first --to python --out augment.py", first=run, augment=file)
        page = Path(folder) / "page.html"
        reported = command("fasteraa report runs/first --out page.html", first=run, page=page)
    parts = [
        f"$ {recorded()['command']}\n{summarise(recorded_result())}",
        command("fasteraa show runs/first", first=run),
        reported,
        exported,
    ]
    return "```console\n" + "\n\n".join(parts) + "\n```"


# --- the table -------------------------------------------------------------------------------------------------------

CONTENDERS = {
    "none": "none",
    "trivialaugment-wide": "TrivialAugment",
    "randaugment-2-14": "RandAugment",
    "autoaugment-cifar10": "AutoAugment",
}
ON_GPU, ON_CORES = "searched on a GPU", "searched on two cores"


def table() -> str:
    """Mean errors in % from results/unseen: no prior was fitted to these sets."""
    rows = [_cuts_row(), *(_zoo_row(how) for how in (ON_GPU, ON_CORES))]
    return markdown_table(["error %, lowest in bold", *CONTENDERS.values(), "**fasteraa**", "searched on", "n"], rows)


def _of_unseen(name: str) -> list[dict[str, Any]]:
    file = ROOT / "results" / "unseen" / name
    return list(json.loads(file.read_text(encoding="utf-8"))["sets"].values())


def _cuts_row() -> list[str]:
    """By a loop that shares nothing with ours."""
    sets = [each["errors"] for each in _of_unseen("independent.json")]
    return _row(f"{len(sets)} cuts of CIFAR, SVHN, MNIST, Fashion-MNIST and Imagenette", sets, ON_CORES, "two cores")


def _zoo_row(how: str) -> list[str]:
    """By our own trainings."""
    sets = []
    for each in _of_unseen("zoo.json"):
        errors: dict[str, dict[str, float]] = {}
        for row in each["rows"]:
            errors.setdefault(row["label"], {})[str(row["seed"])] = row["error"]
        sets.append(errors)
    words = f"{len(sets)} sets of other kinds (leaves, X-rays, textures, food, ...) \u2020"
    return _row(words, sets, how, "GPU" if how == ON_GPU else "two cores")


def _row(words: str, sets: list[dict[str, dict[str, float]]], how: str, where: str) -> list[str]:
    """Means over sets, of the seeds that all policies have."""
    labels = [*CONTENDERS, how]
    seeds = [set.intersection(*(set(errors[label]) for label in labels)) for errors in sets]

    def mean(label: str) -> float:
        return fmean(fmean(errors[label][seed] for seed in of) for errors, of in zip(sets, seeds, strict=True))

    return [f"**{words}**, mean", *_cells([mean(label) for label in labels]), where, str(min(map(len, seeds)))]


def _cells(errors: list[float]) -> list[str]:
    words = [f"{error:.1f}" for error in errors]
    return [f"**{each}**" if each == f"{min(errors):.1f}" else each for each in words]
