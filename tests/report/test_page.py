"""The report as a parser and a browser see it, and the server that follows a run."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from dataclasses import replace
from html.parser import HTMLParser
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import fasteraa
from fasteraa import Choice, Policy, RaceConfig, SearchConfig, SubPolicy, race, search
from fasteraa.comparison.per_op import Drop, OpHarm, PerOp, SubPolicyHarm
from fasteraa.comparison.table import Comparison, ComparisonRow
from fasteraa.errors import FasterAAError, RunError
from fasteraa.report.charts import Forest
from fasteraa.report.comparison import per_op_markdown, publish, read_comparison, to_markdown
from fasteraa.report.outputs import _write_answer
from fasteraa.report.page import Options, blocks, make_page, render, time_words, view, write_report
from fasteraa.report.preview import draw_sheet
from fasteraa.report.run_record import read_run, status
from fasteraa.report.serve import make_server
from fasteraa.report.summary import mass
from fasteraa.runtime.checkpoint import save_checkpoint
from fasteraa.runtime.files import unsealed
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.statistics import estimate, paired

OF_COMPARISON = ["comparison", "per-op"]
OF_GRADIENT_SEARCH = ["curves", "operations"]
ANSWER = ["result", "use", "candidates", "effects", "gallery", "policy"]
SECTIONS = [*ANSWER, *OF_COMPARISON, "tried", "heat", *OF_GRADIENT_SEARCH, "about", "repeat"]
MEASURED = ["effects", "tried"]  # shown where there is something to show
HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)> & {{ 7*7 }}"
README = Path(__file__).resolve().parents[2] / "docs" / "readme"
VOID = {"meta", "link", "img", "br", "input"}


class Page(HTMLParser):
    """Tags with their attributes, and text; nesting must be right."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.texts = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def text(self):
        return " ".join(" ".join(text for tag, text in self.texts if tag not in ("script", "style")).split())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished search of two epochs on the embedded sample, with a race by hand."""
    folder = tmp_path_factory.mktemp("runs") / "a"
    settings = SearchConfig(epochs=2, subset=32, batch_size=16, size=8, sub_policies=3, critic="small")
    result = search(None, settings, race=False, out=folder)
    table = [
        {
            "candidate": "faster-aa-x2",
            "hash": "sha256:0",
            "errors": [41.0, 43.0],
            "training_loss": 1.25,
            "losses": [1.5, 1.6],
        },
        {"candidate": "none", "hash": "sha256:1", "errors": [50.0], "training_loss": 1.0},
        {"candidate": "uniform", "hash": "h", "errors": [50.0], "training_loss": None, "failed": "lost in epoch 1"},
    ]
    effects = {"trainings": 54, "of": {"invert": [12.34, 2.0], "rotate": [-3.0, 1.25]}, "reach": 1.0}
    told = {"chosen": "faster-aa-x2", "sentence": "Use faster-aa-x2: 42.0%.", "folds": 3, "network": "small"}
    told |= {"epochs": 60, "seconds": 80.0, "table": table, "effects": effects}
    provenance = {**result.policy.provenance, "race": told}
    chosen = Policy(result.policy.sub_policies, "faster-aa-x2", provenance=provenance).with_strength(2)
    chosen.save(folder / "policy.json")
    difference = {
        "label": "faster-aa-x2",
        "against_none": {"mean": -9.04, "half": 2.06, "n": 2, "p": 0.01},
        "better": 0.97,
    }
    one = {"label": "uniform", "against_none": {"mean": 0.0, "half": None, "n": 1, "p": None}}
    labels = {"faster-aa-x2": "sha256:0", "none": "sha256:1", "uniform": "h", "uniform-x3": "sha256:3"}
    tried = {"dada": [["fold 1", 2.0], ["fold 1", 2.5], ["fold 2", 1.0], ["fold 1", 1.5]]}
    known = {"policy": chosen.hash, "recommendation": "Use this.", "table": [difference, one], "candidates": labels}
    known |= {"tried": tried}
    (folder / "result.json").write_text(json.dumps(known))
    (folder / "summary.txt").write_text("done\n")
    draw_sheet(chosen, result.data.images[:8]).save(folder / "preview.png")
    return folder


@pytest.fixture(scope="module")
def raced(tmp_path_factory):
    """The folder of a race: a named policy, and one of a file."""
    folder = tmp_path_factory.mktemp("runs") / "r"
    mine = Policy((SubPolicy(((Choice("flip", 0.5),),)),), "mine")
    settings = SearchConfig(subset=32, size=8, batch_size=16)
    race([mine, "uniform"], None, settings, race=RaceConfig(trainings=5, epochs=1), out=folder, device="cpu", jobs=1)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A search of two epochs that was raced."""
    folder = tmp_path_factory.mktemp("runs") / "f"
    settings = SearchConfig(epochs=2, subset=32, size=8, batch_size=16, sub_policies=2, critic="small")
    given = {"methods": "faster-aa", "race": RaceConfig(trainings=4, epochs=4), "device": "cpu", "jobs": 1}
    search(None, settings, out=folder, **given)
    return folder


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    publish(comparison("mine | <b>bold</b>"), folder)
    policy = Policy((SubPolicy(((Choice("invert"), Choice("flip")),)), SubPolicy(())))
    ops = [OpHarm("invert", {1.0: Drop(20.0, 3.0)}), OpHarm("rotate", {0.5: Drop(1.0, 0.5), 1.0: Drop(2.0, 0.5)})]
    subs = [(policy, [SubPolicyHarm(0, Drop(9.0, 1.0)), SubPolicyHarm(1, Drop(0.0, 0.0))])]
    (folder / "per_op.md").write_text(per_op_markdown(PerOp(80.0, 10, "test images", True, ops, subs)))
    return folder


def comparison(label):
    rows = []
    plain = {0: 10.0, 1: 12.0}
    for name, errors in (("none", plain), (label, {0: 8.0, 1: 9.0})):
        against = {} if name == "none" else {"none": paired(list(errors.values()), list(plain.values()))}
        rows.append(ComparisonRow(name, ("sha256:0",), errors, estimate(list(errors.values())), against, None, 3.0))
    return Comparison("sample", 400, 100, "test images", TrainRecipe(epochs=2), "a CPU", tuple(rows), 0)


def page_of(folder, **options):
    return Page(make_page(folder, Options(**options)))


# --- structure ------------------------------------------------------------------------------------------------------


def test_structure(run, compared):
    html = make_page(run, Options(compared))
    page = Page(html)
    assert [attributes["id"] for attributes in page.all("section")] == SECTIONS
    links = [attributes["href"] for attributes in page.all("a")]
    assert links == ["#main", *(f"#{name}" for name in SECTIONS)]
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = {attributes[key] for _, attributes in page.tags for key in ("aria-labelledby",) if key in attributes}
    assert named <= set(ids)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert page.tags[0] == ("html", {"lang": "en"})
    for tag in ("header", "nav", "main", "footer"):
        assert len(page.all(tag)) == 1, tag
    assert all(image.get("alt") for image in page.all("img"))
    assert len(html) < 600_000


def test_nothing_from_outside(run, compared):
    html = make_page(run, Options(compared))
    for tag, attributes in Page(html).tags:
        for key in ("src", "href", "srcset", "action", "data", "poster"):
            if key in attributes:
                assert re.match(r"data:|#", attributes[key]), (tag, key)
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in html
    assert "@import" not in html
    assert "url(" not in html


def test_what_it_shows(run, compared):
    text = page_of(run, comparison=compared).text()
    for words in (
        "sample: 32 images of 10 classes at 8 x 8 pixels", "2 of 2 epochs", "The search is finished.",
        "Strength: every image passes through 2 sub-policies.", "About ", "Use faster-aa-x2: 42.0%.",
        "faster-aa-x2 (chosen) -9.0 42.0 1.550 97% 2", "none 50.0 1", "uniform lost in epoch 1 +0.0 50.0 1",
        "Not raced for lack of time: uniform-x3",
        "rotate -3.0 ± 2.5 invert +12.3 ± 4.0",
        "Methods faster-aa, op-effects, published",
        "Race 1 min 20 s, 4 trainings of up to 60 epochs of small, 3 folds",
        "mine | <b>bold</b> 8.50",
        "Lowest error: mine | <b>bold</b>", "invert +20.0 (±3.0)", "[50% invert(100%) | 50% flip(100%)]",
        f"fasteraa search --config {run / 'config.toml'} --out runs/again",
        "learning_rate = 0.001", "policy.to_timm(transform",
    ):  # fmt: skip
        assert words in text, words
    assert "calibrat" not in make_page(run, Options(compared)).lower()


def test_the_answer_comes_first(run):
    text = page_of(run).text()
    sentence, table = text.index("Use faster-aa-x2: 42.0%."), text.index("faster-aa-x2 (chosen)")
    others = [
        text.index(words)
        for words in ("Fingerprint of the images", "Versions", "Gradient search", "sub-policies in words")
    ]
    code = text.index("policy.transform()")
    assert text.index("What to use") < sentence < code < table < text.index("Draw again") < min(others)


def test_a_policy_of_version_01_shows_its_table(copy):
    """Which it has under another name; what is beside the policy is of another one."""
    known = Policy.load(copy / "policy.json")
    provenance = dict(known.provenance)
    told = provenance.pop("race")
    told["table"][2]["diverged"] = told["table"][2].pop("failed")
    other = Policy(known.sub_policies, provenance={**provenance, "calibration": told})
    assert other.hash != known.hash
    other.save(copy / "policy.json")
    text = page_of(copy).text()
    assert "Use faster-aa-x2: 42.0%." in text
    assert "faster-aa-x2 (chosen) 42.0 1.550 2" in text  # no difference is known
    assert "uniform lost in epoch 1 50.0 1" in text
    assert "uniform-x3" not in text


def test_the_command_has_the_source_as_it_was_given(copy):
    kept = (copy / "source.json").read_text()
    assert unsealed(json.loads(kept), needed=True) == {"source": None}  # the embedded sample
    end = "--out runs/again"
    for given, words in (
        ({"source": "my photos/", "data_root": "/data"}, f"'my photos/' --config CONFIG --data-root /data {end}"),
        ({"source": "a", "device": "cpu", "minutes": "2.5"}, f"a --config CONFIG --device cpu --minutes 2.5 {end}"),
        ({"source": "a", "device": "x; y"}, f"a --config CONFIG --device 'x; y' {end}"),
        ({"source": 7}, f"--config CONFIG {end}"),  # not what a search writes
        ("[", f"--config CONFIG {end}"),
        (kept.replace('"source": null', '"source": "a"'), f"--config CONFIG {end}"),
    ):
        (copy / "source.json").write_text(given if isinstance(given, str) else json.dumps(given))
        assert f"fasteraa search {words}".replace("CONFIG", str(copy / "config.toml")) in page_of(copy).text()


# --- other folders --------------------------------------------------------------------------------------------------


def test_what_methods_tried(run):
    """The best so far, a line for each fold; what cannot be that is left out."""
    record = read_run(run)
    (shown,) = view(record, Options())["tried"]
    assert (shown["title"], shown["about"], shown["legend"]) == ("dada", "4 tries", ["fold 1", "fold 2"])
    assert "a lower score is better" in page_of(run).text()
    (points,) = re.findall(r'points="([^"]*)"', shown["svg"].split("line s0", 1)[1])[:1]
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert heights[0] == heights[1] < heights[2]  # 2, still 2, then 1.5, which is drawn lower
    timed = {"tried": {"pba": [["fold 1", 2.0, 30.0], ["fold 2", 3.0, 30.0], ["fold 1", 1.0, 60.5]]}}
    (shown,) = view(replace(record, result=timed), Options())["tried"]
    assert shown["about"] == "3 tries, 2 min"
    assert "best score of pba by seconds" in shown["svg"]
    first, last = re.search(r'points="([^"]*)"', shown["svg"].split("line s0", 1)[1]).group(1).split()
    assert float(first.split(",")[0]) < float(last.split(",")[0])  # 30 s, and 120.5 s with the other fold's
    for odd in (3, {"x": 3}, {"x": [3, ["a"], ["a", "b"], ["a", 1, None], ["a", float("nan")], ["a", True]]}):
        assert view(replace(record, result={"tried": odd}), Options())["tried"] == []


def begin_with(folder, settings):
    """As if the run had been begun with them."""
    RunFolder(folder).write_config(settings.partition("# sha256 of")[0])


def test_the_folder_of_a_race(raced):
    page = page_of(raced)
    sections = [attributes["id"] for attributes in page.all("section")]
    nothing = not fasteraa.load(raced / "policy.json").ops  # so short a race may end either way
    single = len(fasteraa.load(raced / "policy.json").sub_policies) == 1  # which its words say whole
    left_out = OF_GRADIENT_SEARCH + MEASURED + ["per-op"] + ["policy", "heat"] * nothing + ["heat"] * single
    assert sections == [s for s in SECTIONS if s not in left_out]
    text = page.text()
    assert "The race is finished." in text
    known = json.loads((raced / "result.json").read_text())
    assert known["recommendation"] in text
    assert text.count("(chosen)") == 1
    assert ("This is the policy to use. A column is a stage" in text) != (nothing or single)
    assert "sample: 32 images of 10 classes at 8 x 8 pixels" in text
    policies = f"none,mine={raced}/candidates/mine.json,uniform"
    config = raced / "config.toml"
    assert f"fasteraa race --policies {policies} --config {config} --device cpu --out runs/again" in text


def test_a_race_under_way(raced, tmp_path):
    folder = shutil.copytree(raced, tmp_path / "run")
    for name in ("policy.json", "result.json", "summary.txt"):
        (folder / name).unlink()
    count = len(list((folder / "race" / "runs").iterdir()))
    assert count >= 3
    assert f"The race is under way, or was stopped: {count} trainings finished." in page_of(folder).text()
    before = status(folder)
    assert before["state"] == "racing"
    next((folder / "race" / "runs").iterdir()).unlink()
    assert status(folder)["version"] != before["version"]


def test_the_folder_of_a_comparison(compared, tmp_path):
    page = page_of(compared)
    assert [attributes["id"] for attributes in page.all("section")] == OF_COMPARISON
    assert "Comparison on sample The comparison is finished." in page.text()
    assert "Lowest error: mine | <b>bold</b>" in page.text()
    assert "invert +20.0 (±3.0)" in page.text()
    assert status(compared)["state"] == "finished"
    publish(replace(comparison("late"), missing=2), tmp_path)
    assert "The comparison is under way, or was stopped." in page_of(tmp_path).text()
    assert status(tmp_path)["state"] == "comparing"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A finished search by masks."""
    folder = tmp_path_factory.mktemp("runs") / "scenes"
    images, masks = torch.arange(16 * 768).reshape(16, 3, 16, 16) % 256, torch.arange(16 * 256).reshape(-1, 16, 16) % 2
    settings = SearchConfig(epochs=1, batch_size=8, size=16, sub_policies=2, critic="small")
    search((images.byte().numpy(), masks.byte().numpy()), settings, out=folder)
    return folder


def test_a_search_by_masks_is_told_as_one(scenes):
    """compare and the race train classifiers, so nobody is sent there; image and mask share a draw."""
    text = page_of(scenes).text()
    assert "16 images with masks of 2 classes at 16 x 16 pixels" in text
    assert "A race trains classifiers, so images with masks have none" in text
    assert text.count("trains classifiers") == 2
    for words in ("--no-race", "fasteraa race", "--per-op", "to_timm", "Whole batches", "Pillow alone"):
        assert words not in text, words


@pytest.mark.parametrize("place", range(2))
def test_the_code_for_masks_runs(scenes, place):
    title, code = view(read_run(scenes), Options())["code"][place]
    pytest.importorskip(title)
    pictures, mask = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.ones(8, 8, dtype=torch.uint8)
    array = pictures[0].permute(1, 2, 0).numpy()
    names = {"train_images": pictures, "image": pictures[0], "mask": mask, "array": array, "numbers": mask.numpy()}
    exec(code, names)
    moved = names["both"]["mask"] if "both" in names else names["mask"].numpy()
    assert moved.shape == (8, 8)
    transform = names["transform"]
    assert (transform.transforms[0] if "both" in names else transform).mask_fill == 255
    assert set(moved.flatten().tolist()) <= {1, 255}


def test_timm_alone_does_the_policys_work(run):
    """create_transform jitters colours if it is not told otherwise."""
    timm = pytest.importorskip("timm")
    code = dict(view(read_run(run), Options())["code"])["timm"]
    names = {"train_images": torch.zeros(4, 3, 8, 8, dtype=torch.uint8)}
    exec(code, names)
    plain = timm.data.create_transform(224, is_training=True, auto_augment=None, color_jitter=None)
    kinds = [type(step).__name__ for step in names["transform"].transforms]
    assert [kind for kind in kinds if kind != "PolicyAugment"] == [type(step).__name__ for step in plain.transforms]


@pytest.mark.parametrize("place", range(7))
def test_the_code_runs(run, place, monkeypatch):
    title, code = view(read_run(run), Options())["code"][place]
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    needed = {"DALI": "nvidia.dali", "Keras": "keras"}.get(title, title)
    if title not in ("torchvision", "batches"):
        pytest.importorskip(needed)
    batch = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    names = {"train_images": batch, "batch": batch}
    exec(code, names)
    assert title == "DALI" or callable(names.get("transform", names.get("layer", names["policy"])))
    assert len(view(read_run(run), Options())["code"]) == 8


def test_heat_map_by_hand(run, tmp_path):
    stage = (Choice("invert", 0.5, weight=3.0), Choice("rotate", 1.0, (0.2, 0.6), 1.0))
    Policy((SubPolicy((stage, (Choice("flip", 0.25),))), SubPolicy(((Choice("rotate", 0.5, 0.1),),)))).save(
        tmp_path / "policy.json"
    )
    Policy((SubPolicy(((Choice("flip"),),)),)).save(tmp_path / "methods/faster-aa/start.json")
    page = page_of(tmp_path)
    data = json.loads(next(text for tag, text in page.texts if tag == "script" and text.startswith("{")))
    assert data["columns"] == [[1, 1], [1, 2], [2, 1]]
    assert data["ops"] == ["rotate", "flip", "invert"]
    assert data["values"]["after"] == {
        "chosen": [0.25, None, 1.0, None, 1.0, None, 0.75, None, None],
        "probability": [1.0, None, 0.5, None, 0.25, None, 0.5, None, None],
        "magnitude": [0.4, None, 0.1, None, None, None, None, None, None],
        "applied": [0.25, None, 0.5, None, 0.25, None, 0.375, None, None],
    }
    assert data["values"]["before"]["chosen"] == [None, None, None, 1.0, None, None, None, None, None]
    assert data["words"]["after"][0] == "chosen 25%, rotate(100%, ±6.0° to ±18.0°)"
    shown = [text for tag, text in page.texts if tag == "td"][:4]
    assert shown == ["25", "100", "100", "75"]


def test_a_search_without_gradients_has_no_sections_of_them(tmp_path):
    folder = shutil.copytree(README / "first", tmp_path / "first")
    for _ in range(2):
        page = page_of(folder)
        assert not {"curves", "operations"} & {attributes.get("id") for attributes in page.all("section")}
        assert "Gradient search" not in page.text()
        (folder / "config.toml").unlink(missing_ok=True)


def test_where_none_is_chosen_the_runner_up_is_shown_and_no_code_comes_first(tmp_path):
    folder = shutil.copytree(README / "first", tmp_path / "first")
    kept = Policy.load(folder / "policy.json")
    rows = kept.provenance["race"]["table"]
    rows.sort(key=lambda row: row["candidate"] != "none")
    told = {**kept.provenance, "race": {**kept.provenance["race"], "chosen": "none"}}
    replace(Policy.named("none"), provenance=told).save(folder / "policy.json")
    page = page_of(folder)
    assert "There is nothing to add to your training" in page.text()
    assert not {"gallery", "policy", "heat"} & {attributes.get("id") for attributes in page.all("section")}
    assert "unchanged" not in page.text()
    (folder / "candidates").mkdir()
    replace(kept, provenance={}).save(folder / "candidates" / "randaugment-2-9.json")
    said = page_of(folder).text()
    assert "What randaugment-2-9 would do to images" in said
    assert "randaugment-2-9 is the runner-up, and was not chosen." in said


def test_an_interval_that_leaves_the_plot_has_arrows():
    """A wide one, drawn as far as the plot goes, would look like a narrow one."""
    forest = Forest([(-6.0, 6.0), (-1.0, 5.0)])
    assert "arrow" not in forest.row(-6.0, 6.0)
    assert forest.row(-8.0, 71.9).count("arrow") == 2
    assert forest.row(-8.0, 8.0).count("arrow") == 1
    assert forest.row(50.0, None).count("middle") == 0


def test_trajectories_end_where_the_policies_stand(run):
    record = read_run(run)
    assert all(len(path) == 3 for path in record.masses.values())
    for number, policy in ((0, record.start), (-1, record.gradient)):
        for op, value in mass(policy).items():
            assert record.masses[op][number] == pytest.approx(value, abs=2e-3)


# --- strangers ------------------------------------------------------------------------------------------------------


def test_hostile_names_are_escaped(copy, compared, tmp_path):
    found = Policy.load(copy / "policy.json")
    data = {**found.provenance["data"], "name": HOSTILE}
    table = [{"candidate": HOSTILE, "errors": [1], "failed": HOSTILE}, 7, {}]
    told = {"chosen": HOSTILE, "sentence": HOSTILE, "table": table, "network": HOSTILE, "epochs": 1}
    provenance = {"data": data, "device": HOSTILE, "versions": {HOSTILE: HOSTILE}, "race": told}
    hostile = Policy(found.sub_policies, HOSTILE, provenance=provenance)
    hostile.save(copy / "policy.json")
    known = {"policy": hostile.hash, "recommendation": HOSTILE, "candidates": {HOSTILE: HOSTILE, "b": 3}}
    (copy / "result.json").write_text(json.dumps(known))
    other = tmp_path / "other"
    other.mkdir()
    publish(comparison(HOSTILE), other)
    (other / "per_op.md").write_text(f"{HOSTILE}\n\n| {HOSTILE} | b |\n|---|---|\n| {HOSTILE} | {HOSTILE} |\n")
    (copy / "config.toml").write_text((copy / "config.toml").read_text() + f"# {HOSTILE}\n")
    html = make_page(copy, Options(other))
    page = Page(html)
    assert "alert(1)" in page.text()
    assert "{{ 7*7 }}" in page.text()
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert len(page.all("script")) == 2
    assert all(src["src"].startswith("data:image/") for src in page.all("img"))


@pytest.mark.parametrize(
    "provenance",
    [
        {"data": "x", "race": [1]},
        {"race": {"table": [], "effects": {"of": {"invert": "x", "rotate": [1], "color": [None, 2]}}}},
        {"race": {"table": [], "effects": {"of": 3}}},
        {"calibration": {"table": [], "effects": {"of": 3}}},
        {"data": {"name": 5, "size": ["a", None]}, "race": {"table": "x"}},
        {"seconds": "long", "versions": 3, "peak_memory_mib": "much", "epochs": "all", "finished": "no"},
        {"data": {"name": "cifar10", "size": [-1, 0]}, "race": {"table": [{"errors": ["a"]}, {"errors": []}]}},
        {"race": {"table": [{"errors": [1], "losses": 3}], "seconds": "x", "epochs": "y", "folds": [], "sentence": 4}},
    ],
)
def test_provenance_of_any_shape(tmp_path, provenance):
    Policy((SubPolicy(((Choice("flip"),),)),), provenance=provenance).save(tmp_path / "policy.json")
    assert "The search is finished." in page_of(tmp_path).text()


@pytest.mark.parametrize(
    "beside",
    [
        {"table": 3, "candidates": [1], "recommendation": 5},
        {"table": [3, {"label": "none", "against_none": {"mean": "x"}}], "candidates": {"none": 1}},
    ],
)
def test_results_of_any_shape(copy, beside):
    known = {"policy": Policy.load(copy / "policy.json").hash, **beside}
    (copy / "result.json").write_text(json.dumps(known))
    assert "Use faster-aa-x2: 42.0%." in page_of(copy).text()


def test_a_result_of_another_policy_is_not_shown(copy):
    file = copy / "result.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "policy": "sha256:9"}))
    text = page_of(copy).text()
    assert "against none" not in text.split("The policy")[0]
    assert "uniform-x3" not in text


# --- missing and damaged --------------------------------------------------------------------------------------------


def test_the_folder_of_version_01_still_has_a_page(copy):
    """It cannot be resumed, and its settings cannot be given to a command, but what it found is there."""
    file = copy / "config.toml"
    for each in (copy / "methods/faster-aa").iterdir():
        each.rename(copy / each.name)
    (copy / "methods/faster-aa").rmdir()
    (copy / "methods").rmdir()
    text = file.read_text().partition("[run]")[0].replace('critic = "small"', 'backbone = "small"')
    assert 'objective = "diverse"' in text
    file.write_text(text.replace('objective = "diverse"', 'objective = "hard"\nallowance = 1.0'))
    (copy / "faster-aa.json").rename(copy / "found.json")
    (copy / "result.json").unlink()
    (copy / "checkpoint.pt").unlink()  # else it says the same as found.json
    assert "objective = &#34;hard&#34;" in make_page(copy, Options())
    page = page_of(copy)
    assert [attributes["id"] for attributes in page.all("section")] == [
        name for name in SECTIONS if name not in ("tried", "per-op")
    ]
    assert "This is the gradient search's policy." in page.text()
    assert "defaults of this version: fasteraa search --out runs/again" in page.text()
    assert status(copy) | {"version": ""} == {"state": "finished", "epochs": 2, "planned": 2, "version": ""}


def test_missing_pieces(copy):
    text = page_of(copy).text()
    assert f"fasteraa compare --policies none,trivialaugment-wide,chosen={copy} --per-op --out runs/compared" in text
    assert f"fasteraa report {copy} --comparison runs/compared" in text
    for name, words in (
        ("methods/faster-aa/metrics.jsonl", "No epoch is done yet"),
        ("methods/faster-aa/checkpoint.pt", "How often an image is transformed by the operation"),
        ("methods/faster-aa/faster-aa.json", "This is the policy to use."),
        ("result.json", "faster-aa-x2 (chosen) 42.0 1.550 2"),
        ("preview.png", "Sub-policy 1"),
        ("methods/faster-aa/start.json", "holds neither the start of the gradient search nor its checkpoint"),
        ("config.toml", "The run folder has no config.toml"),
    ):
        (copy / name).unlink()
        page = page_of(copy)
        assert words in page.text(), name
        assert (" course " in page.text()) == (
            copy / "methods/faster-aa/checkpoint.pt"
        ).exists()  # no line where no course is known
        without = ["per-op"] + ([] if (copy / "result.json").exists() else ["tried"])
        without += [] if (copy / "config.toml").exists() else OF_GRADIENT_SEARCH  # of which nothing is left, either
        assert [attributes["id"] for attributes in page.all("section")] == [s for s in SECTIONS if s not in without]


def test_pictures_without_the_data(copy):
    found = Policy.load(copy / "policy.json")
    data = {**found.provenance["data"], "name": "my photographs"}
    Policy(found.sub_policies, provenance={**found.provenance, "data": data}).save(copy / "policy.json")
    sheet = page_of(copy).all("img")
    assert [image.get("class") for image in sheet] == ["sheet"]
    assert sheet[0]["src"].startswith("data:image/png;base64,")
    assert len(page_of(copy, source="sample").all("img")) == 3  # each sub-policy alone
    assert len(page_of(copy, source="sample").all("use")) == 6 + 2 * 6  # originals, and two draws
    (copy / "preview.png").unlink()
    assert "There are no pictures" in page_of(copy).text()
    with pytest.raises(FasterAAError, match="no such file or folder"):
        page_of(copy, source="no/where")


@pytest.mark.parametrize(("line", "size"), [("size = 8", (8, 8)), ("", None)])
def test_pictures_have_the_size_that_was_asked_for_or_the_images_own(copy, monkeypatch, line, size):
    """A CPU may have searched on smaller ones."""
    file, asked = copy / "config.toml", []
    lines = file.read_text().splitlines()
    assert "size = 8" in lines
    begin_with(copy, "\n".join(line if each == "size = 8" else each for each in lines))
    monkeypatch.setattr(render, "images_of", lambda name, source, size, *rest: asked.append(size))
    make_page(copy, Options(source="sample"))
    assert asked == [size]


def test_unfinished_runs(copy):
    for name in ("policy.json", "methods/faster-aa/faster-aa.json", "result.json", "summary.txt"):
        (copy / name).unlink()
    text = (copy / "config.toml").read_text()
    begin_with(copy, text.replace("epochs = 2", "epochs = 5"))
    with (copy / "methods/faster-aa/metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "dist')  # being written
    page = page_of(copy)
    assert "under way, or was stopped: 2 of 5 epochs." in page.text()
    assert "There is no policy yet" in page.text()
    assert page.all("progress")[0]["value"] == "2"
    assert page.all("table")[0].get("id") == "heat-map"  # from the checkpoint
    assert status(copy) | {"version": ""} == {"state": "searching", "epochs": 2, "planned": 5, "version": ""}
    begin_with(copy, text.replace("epochs = 2", "# epochs ="))
    start = Policy.load(copy / "methods/faster-aa/start.json")
    settled = {**start.provenance, "config": {"epochs": 7}}
    Policy(start.sub_policies, provenance=settled).save(copy / "methods/faster-aa/start.json")
    assert status(copy)["planned"] == 7  # as the search decided when it knew the images
    (copy / "methods/faster-aa/checkpoint.pt").unlink()
    assert "the gradient search has not finished an epoch" in page_of(copy).text()


def test_states(copy):
    def state():
        return status(copy)["state"]

    assert state() == "finished"
    before = status(copy)["version"]
    policy, found = Policy.load(copy / "policy.json"), Policy.load(copy / "methods/faster-aa/faster-aa.json")
    (copy / "policy.json").unlink()
    assert status(copy)["version"] != before
    assert state() == "searching"
    (copy / "race").mkdir()
    assert state() == "racing"
    policy.save(copy / "policy.json")
    assert state() == "finished"
    schedule, summary = copy / "race" / "schedule.json", copy / "summary.txt"
    for over, older, expected in ((False, False, "racing"), (True, False, "finished"), (False, True, "finished")):
        schedule.write_text(json.dumps({"setup": {"over": over}}))
        os.utime(schedule, (0, summary.stat().st_mtime + (-9 if older else 9)))
        assert state() == expected  # a race that had less time is run again; one that failed is older than the summary
    Policy(policy.sub_policies, provenance={**policy.provenance, "finished": False}).save(copy / "policy.json")
    assert state() == "ended early"
    Policy(found.sub_policies, provenance={**found.provenance, "epochs": 1}).save(
        copy / "methods/faster-aa/faster-aa.json"
    )
    assert state() == "searching"  # resumed


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("policy.json", b"{", "the policy is not valid JSON"),
        ("methods/faster-aa/start.json", b"[]", "a policy must be an object"),
        ("config.toml", b"[search", "is not valid TOML"),
        ("config.toml", b"epochs = 'x'", "epochs must be a whole number"),
        ("config.toml", b"[search]\nepochs = 'x'\n[run]\n", "epochs must be a whole number"),
        ("result.json", b"{", "is not valid JSON"),
        ("methods/faster-aa/metrics.jsonl", b"nothing\n{}\n", "line 1 of .* is no epoch"),
        ("methods/faster-aa/checkpoint.pt", b"PK", "is damaged .it is too short"),
        ("comparison.json", b'{"rows": 3}', "is no comparison"),
    ],
)
def test_damaged_folders_are_one_line(copy, name, content, message):
    (copy / name).write_bytes(content)
    with pytest.raises(FasterAAError, match=message) as caught:
        make_page(copy, Options())
    assert "\n" not in str(caught.value)


def test_a_value_that_changed_in_the_result_is_noticed(raced, tmp_path):
    folder = shutil.copytree(raced, tmp_path / "run")
    text = (folder / "result.json").read_text()
    (folder / "result.json").write_text(text.replace("0.", "1.", 1))
    with pytest.raises(RunError, match=r"result.json' is damaged \(its content does not match its digest\)"):
        make_page(folder, Options())


DAMAGE = {  # what a flipped bit makes of a digit, and lines that are lost
    "config.toml": [("seed = 0", "seed = 8"), ("subset = 32\n", ""), ("[run]\n", ""), ("seed = 0", "# seed =")],
    "policy.json": [('"epochs": 4', '"epochs": 5'), ('"name": "', '"name": "x'), ("held-out", "held-auf")],
    "methods/faster-aa/metrics.jsonl": [('"distance": ', '"distance": 9'), ('"epoch": 2', '"epoch": 3')],
}


@pytest.mark.parametrize(("name", "old", "new"), [(name, *each) for name, all_ in DAMAGE.items() for each in all_])
def test_what_changed_in_a_file_of_a_run_is_noticed(finished, tmp_path, name, old, new):
    folder = shutil.copytree(finished, tmp_path / "run")
    read_run(folder)
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))
    with pytest.raises(RunError, match=r"is damaged|are not those that the run was begun with"):
        read_run(folder)


def test_epochs_that_are_lost_are_noticed(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    file = folder / "methods/faster-aa/metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    for left in ([], lines[:1], lines[1:]):
        file.write_text("".join(left))
        with pytest.raises(RunError, match=r"metrics\.jsonl' is damaged|is no epoch"):
            read_run(folder)
    file.write_text("".join(lines) + '{"epoch": 3, "dist')  # being written
    assert len(read_run(folder).metrics) == 2


def test_a_kill_between_result_and_policy_is_no_damage(finished, tmp_path):
    """The race was run again and chose the same."""
    folder = RunFolder(shutil.copytree(finished, tmp_path / "run"))
    old, bytes_ = Policy.load(folder.policy), folder.policy.read_bytes()
    new = replace(old, provenance={**old.provenance, "seconds": 123.0})
    _write_answer(new, {"policy": new.hash, "chosen": "x"}, folder)
    assert read_run(folder.path).result["chosen"] == "x"
    folder.policy.write_bytes(bytes_)
    assert read_run(folder.path).result == {}


def test_a_checkpoint_of_other_settings(copy):
    save_checkpoint(copy / "methods/faster-aa/checkpoint.pt", {"trajectory": torch.zeros(2, 3, 1, 1, 1)})
    with pytest.raises(RunError, match="does not fit the settings"):
        make_page(copy, Options())


def test_no_run(tmp_path):
    with pytest.raises(RunError, match="needs the folder of a run"):
        make_page(tmp_path / "no", Options())
    with pytest.raises(RunError, match=r"no config\.toml, no policy\.json and no comparison\.json"):
        make_page(tmp_path, Options())
    Policy.named("uniform").save(tmp_path / "policy.json")
    with pytest.raises(RunError, match=r"holds no comparison\.json"):
        make_page(tmp_path, Options(comparison=tmp_path))


# --- small parts ----------------------------------------------------------------------------------------------------


def test_comparisons_come_back(compared):
    found = read_comparison(compared / "comparison.json")
    assert to_markdown(found) == (compared / "comparison.md").read_text()


def test_tables_in_markdown():
    found = list(blocks("One\nline.\n\n| a | b |\n|---|---|\n| 1 \\| 2 | 3 |\n| 4 | 5 | 6 |\n"))
    assert found == [{"text": "One line."}, {"head": ["a", "b"], "rows": [["1 | 2", "3"], ["4", "5 | 6"]]}]


def test_durations():
    assert [time_words(s) for s in (3, 125, None, "x", -1, float("nan"), True)] == [
        "3.0 s", "2 min 5 s", None, None, None, None, None,
    ]  # fmt: skip


def command(*arguments, cwd):
    line = [sys.executable, "-m", "fasteraa", "report", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False, cwd=cwd)


def test_command_line(copy, tmp_path, fasteraa):
    done = command(copy, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{copy / 'report.html'}\n"), done.stderr
    assert Page((copy / "report.html").read_text()).all("main")
    (copy / "policy.json").write_text("{")
    code, _, error = fasteraa("report", copy)
    assert (code, error.count("\n")) == (2, 1)
    assert fasteraa("report", copy, "--serve", "--out", tmp_path / "x.html") == (
        2, "", "fasteraa: --serve writes no file: leave out --out, or --serve\n",
    )  # fmt: skip


# --- the server -----------------------------------------------------------------------------------------------------


@pytest.fixture
def server(copy):
    found = make_server(copy, 0)
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield found, copy
    found.shutdown()
    thread.join()
    found.server_close()


def get(server, path, method="GET", **headers):
    connection = HTTPConnection(*server.server_address)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_serving(server):
    site, folder = server
    assert site.server_address[0] == "127.0.0.1"
    code, html = get(site, "/")
    assert code == 200
    assert "data-live" in dict(Page(html).tags)["body"]
    code, text = get(site, "/status.json")
    assert json.loads(text)["state"] == "finished"
    assert get(site, "/", "HEAD") == (200, "")
    assert get(site, "/?again")[0] == 200
    (folder / "summary.txt").write_text("longer than before\n")
    assert json.loads(get(site, "/status.json")[1])["version"] != json.loads(text)["version"]


@pytest.mark.parametrize(
    "path", ["/policy.json", "/../policy.json", "//etc/passwd", "/%2e%2e/policy.json", "/status.json/..", "*"]
)
def test_nothing_else_is_served(server, path):
    code, text = get(server[0], path)
    assert code == 404
    assert text == "there is a page at / and a status at /status.json\n"


def test_only_for_this_machine(server):
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example"):
        assert get(server[0], "/", Host=host)[0] == 403
    assert get(server[0], "/", Host="localhost:1")[0] == 200
    assert get(server[0], "/", "POST")[0] == 501


def test_a_damaged_folder_is_told_and_gets_well_again(server):
    site, folder = server
    whole = (folder / "policy.json").read_text()
    (folder / "policy.json").write_text("{<b>")
    code, html = get(site, "/")
    assert code == 500
    assert "is not valid JSON" in html
    assert get(site, "/status.json")[0] == 500
    (folder / "policy.json").write_text(whole)
    assert get(site, "/")[0] == 200


def test_a_taken_port(server):
    port = server[0].server_address[1]
    with pytest.raises(RunError, match=rf"port {port} of 127\.0\.0\.1 cannot be served .* --port"):
        make_server(server[1], port)


def test_serving_from_the_command_line(copy):
    line = [sys.executable, "-m", "fasteraa", "report", str(copy), "--serve", "--port", "0"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = process.stdout.readline().split()[0]
    with urllib.request.urlopen(address + "status.json") as answer:
        assert json.load(answer)["epochs"] == 2
    process.terminate()
    _, said = process.communicate()
    assert process.returncode == 128 + 15
    assert said == "fasteraa: stopped by SIGTERM before it was done\n"


# --- a browser ------------------------------------------------------------------------------------------------------

CELLS = "[...document.querySelectorAll('#heat-map td')].map((cell) => cell.textContent)"
PAINT = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def address(run, compared, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(run, path, Options(compared))
    return path.as_uri()


@pytest.fixture(scope="module")
def address_of_readme(compared, tmp_path_factory):
    """Of the search that the README shows, which `make demo` makes, too."""
    path = tmp_path_factory.mktemp("readme") / "report.html"
    write_report(README / "first", path, Options(compared))
    return path.as_uri()


@pytest.fixture(scope="module")
def address_of_many(run, tmp_path_factory):
    """With as many sub-policies as a gradient search has."""
    folder = shutil.copytree(run, tmp_path_factory.mktemp("many") / "run")
    policy, start = (Policy.load(folder / "methods/faster-aa" / name) for name in ("faster-aa.json", "start.json"))
    for each, name in ((policy, "faster-aa.json"), (start, "start.json")):
        replace(each, sub_policies=each.sub_policies[:2] * 5).save(folder / "methods/faster-aa" / name)
    path = folder.parent / "report.html"
    write_report(folder, path)
    return path.as_uri()


# the numbers of every epoch, which are folded away, may be scrolled
WIDE = """[...document.querySelectorAll(
    '.scroll:not(#curves *), .forest, .forest :is(th, td):not(.plot), .tiles, .stack, #heat-map, #repeat > div pre')]
    .filter((one) => one.scrollWidth - one.clientWidth > 1)
    .map((one) => `${one.closest('section').id} ${one.className}: ${one.scrollWidth} > ${one.clientWidth}`)"""


@pytest.mark.parametrize("width", [390, 900, 1400])
def test_nothing_is_cut_off_on_the_pages_of_the_readme_and_of_many_sub_policies(
    browser, address_of_readme, address_of_many, width
):
    for place in (address_of_readme, address_of_many):
        browser.open(place, width)
        browser.ask(
            "document.querySelectorAll('#heat details, #policy details').forEach((one) => { one.open = true; })"
        )
        assert browser.ask("document.documentElement.scrollWidth") == width
        assert browser.ask(WIDE) == []
        assert browser.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 390, 900, 1400])
def test_it_loads_and_fits(browser, address, width, dark):
    browser.open(address, width, dark)
    assert browser.complaints() == []
    assert browser.asked_for() == [address]
    browser.ask("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert browser.ask("document.documentElement.scrollWidth") == width
    assert browser.ask(WIDE) == []  # no column is cut off, and none has to be scrolled to
    assert browser.ask("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
    assert browser.ask(f"{PAINT} === 'rgb(21, 23, 26)'") is dark
    assert len(browser.picture()) > 20_000
    shown = os.environ.get("FASTERAA_SCREENSHOTS")  # for people to look at
    if shown:
        with open(f"{shown}/{width}-{'dark' if dark else 'light'}.png", "wb") as file:
            file.write(browser.picture())


def test_a_heat_map_of_few_columns_has_its_numbers_on_a_phone(browser, address_of_many, tmp_path):
    """Where there is no room for them the colours are left; without them a policy of equal parts is one block."""
    letters = "parseFloat(getComputedStyle(document.querySelector('#heat-map td')).fontSize)"
    folder = shutil.copytree(README / "first", tmp_path / "run")
    policy = Policy.load(folder / "policy.json")
    replace(policy, sub_policies=policy.sub_policies * 2).save(folder / "policy.json")
    write_report(folder, tmp_path / "report.html", Options())
    browser.open((tmp_path / "report.html").as_uri(), 390)
    assert browser.ask(letters) > 10
    browser.open(address_of_many, 390)
    assert browser.ask(letters) == 0


def test_long_numbers_on_an_axis_are_not_cut_off(browser, copy, tmp_path):
    """A fresh run's changes are thousandths: 0.0025 is wider than most labels, and an SVG cuts off what leaves it."""
    lines = [json.loads(line) for line in (copy / "methods/faster-aa/metrics.jsonl").read_text().splitlines()]
    told = [{**line, "change": 0.0011 * number, "from_start": 0.0011 * number} for number, line in enumerate(lines, 1)]
    (copy / "methods/faster-aa/metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in told))
    (copy / "methods/faster-aa/checkpoint.pt").unlink()  # which knows other numbers
    write_report(copy, tmp_path / "report.html", Options())
    browser.open((tmp_path / "report.html").as_uri(), 390)
    words = "[...document.querySelectorAll('.chart text')]"
    level = f"{words}.filter((text) => !text.hasAttribute('transform'))"
    assert "0.0005" in browser.ask(f"{words}.map((text) => text.textContent)")
    assert browser.ask(f"Math.min(...{level}.map((text) => text.getBBox().x))") >= 0
    assert browser.ask(f"Math.max(...{level}.map((text) => text.getBBox().x + text.getBBox().width))") <= 360


def test_the_heat_map_can_be_switched(browser, address, run):
    browser.open(address)
    after = browser.ask(CELLS)
    browser.ask("document.querySelector('[name=side][value=before]').click()")
    before = browser.ask(CELLS)
    assert before != after
    browser.ask("document.querySelector('[name=measure][value=magnitude]').click()")
    assert browser.ask(CELLS) != before
    start = Policy.load(run / "methods/faster-aa/start.json")
    share = next(c for c in start.sub_policies[0].stages[0] if c.op == "shear_x")
    data = json.loads(browser.ask("document.getElementById('heat-data').textContent"))
    first = data["ops"].index("shear_x") * len(data["columns"])
    assert browser.ask(CELLS)[first] == str(round(share.magnitude * 100))
    assert browser.complaints() == []


def test_keys_alone(browser, address):
    browser.open(address)
    browser.ask("document.querySelector('#heat-map td').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowDown")
    width = browser.ask("JSON.parse(document.getElementById('heat-data').textContent).columns.length")
    assert browser.ask("document.activeElement.dataset.at") == str(width + 1)
    assert browser.ask("document.getElementById('heat-words').textContent").startswith("Sub-policy 1, stage 2, after: ")
    browser.open(address)
    reached = []
    for _ in range(60):
        browser.press("Tab")
        reached.append(browser.ask("document.activeElement.id || document.activeElement.tagName"))
    assert reached.index("theme") < reached.index("SUMMARY") < reached.index("INPUT") < reached.index("TD")


def test_the_theme_switch(browser, address):
    browser.open(address)
    light = browser.ask(PAINT)
    browser.ask("document.getElementById('theme').click()")
    assert browser.ask(PAINT) != light
    assert browser.ask("document.getElementById('theme').textContent") == "Switch to light"
    browser.open(address)
    assert browser.ask(PAINT) != light  # it was kept
    browser.ask("document.getElementById('theme').click()")
    assert browser.ask(PAINT) == light
    browser.ask("localStorage.clear()")


def test_libraries_are_tabs(browser, address):
    """One is shown, by mouse and by keys, and the page comes back with it."""
    panels = "[...document.querySelectorAll('[role=tabpanel]')]"
    shown = f"{panels}.filter((panel) => panel.offsetParent).map((panel) => panel.id)"
    browser.open(address)
    browser.ask("localStorage.clear()")
    browser.open(address)
    assert browser.ask(shown) == ["panel-1"]
    browser.ask("document.getElementById('tab-3').click()")
    assert browser.ask(shown) == ["panel-3"]
    browser.press("ArrowRight")
    assert browser.ask(shown) == ["panel-4"]
    assert browser.ask("document.activeElement.getAttribute('aria-selected')") == "true"
    browser.open(address)
    assert browser.ask(shown) == ["panel-4"]
    browser.ask("localStorage.clear()")
    assert browser.complaints() == []


def test_draw_again_shows_another_draw_and_its_words(browser, address, run):
    gallery = view(read_run(run), Options())["gallery"]
    words = "[...document.querySelectorAll('.drawn p')].map((p) => p.innerText.split('\\n'))"
    boxes = "[...document.querySelectorAll('.drawn svg')].map((svg) => svg.getAttribute('viewBox'))"
    browser.open(address)
    for first in (0, 2):
        rows = [each or ["unchanged"] for row in gallery.draws[first : first + 2] for each in row]
        assert browser.ask(words) == rows
        assert browser.ask(boxes) == [gallery.box(1 + first + at // 6, at % 6) for at in range(12)]
        browser.ask("document.getElementById('again').click()")
    assert browser.ask("document.getElementById('drawn').textContent") == "Draws 5 to 6 of 40"
    assert browser.complaints() == []


def test_print_has_no_controls(browser, address):
    browser.open(address)
    browser.do("Emulation.setEmulatedMedia", media="print")
    hidden = "['#theme', '#again', 'nav', '[role=tablist]'].every((each) => !document.querySelector(each).offsetParent)"
    assert browser.ask(hidden)
    assert browser.ask("document.querySelector('#panel-1 pre').offsetParent !== null")
    browser.do("Emulation.setEmulatedMedia", media="")


def test_code_can_be_taken_along(browser, address):
    browser.open(address)
    browser.ask("document.querySelector('#use .code button').click()")
    said = browser.ask(
        "new Promise((done) => setTimeout(() => done(document.querySelector('#use .code button').textContent), 300))"
    )
    assert said in ("Copied", "Selected")


def test_hostile_names_do_nothing_in_a_browser(browser, copy, tmp_path):
    found = Policy.load(copy / "policy.json")
    data = {**found.provenance["data"], "name": HOSTILE}
    Policy(found.sub_policies, HOSTILE, provenance={"data": data, "device": HOSTILE}).save(copy / "policy.json")
    write_report(copy, tmp_path / "x.html")
    browser.open((tmp_path / "x.html").as_uri())
    assert browser.complaints() == []
    assert browser.ask("document.title").startswith("Augmentation for </script><script>alert(1)")
    # even a script that got in would not run
    browser.ask(
        "window.got = 0; const s = document.createElement('script'); s.textContent = 'got = 1'; document.body.append(s)"
    )
    assert browser.ask("window.got") == 0


def test_a_live_page_follows_the_run(browser, server):
    site, folder = server
    (folder / "policy.json").unlink()
    text = (folder / "config.toml").read_text()
    begin_with(folder, text.replace("epochs = 2", "epochs = 4"))
    host, port = site.server_address
    browser.open(f"http://{host}:{port}/")
    assert "2 of 4 epochs" in browser.ask("document.getElementById('state').textContent")
    browser.ask("document.querySelector('[name=side][value=before]').click()")
    row = json.loads((folder / "methods/faster-aa/metrics.jsonl").read_text().splitlines()[-1])
    # the page must know the version it shows before another comes
    browser.ask("new Promise((done) => setTimeout(done, 2500))")
    browser.events.clear()
    with (folder / "methods/faster-aa/metrics.jsonl").open("a") as file:
        file.write(json.dumps({**row, "epoch": 3}) + "\n")
    browser.wait("Page.loadEventFired")
    assert "3 of 4 epochs" in browser.ask("document.getElementById('state').textContent")
    assert browser.ask("document.querySelector('[name=side]:checked').value") == "before"  # as the reader had it
    assert browser.complaints() == []
    browser.open("about:blank")
