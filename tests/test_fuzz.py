"""Whatever lies in a file that we read: the right result, or a FasterAAError of at most 500 characters.

In bounded time and memory, and no file is changed by reading. `make fuzz` tries thousands of damaged files of each
format (FASTERAA_FUZZ examples each); the suite tries a few, always the same.
"""

import io
import json
import math
import os
import struct
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet
from safetensors.torch import save_file

from fasteraa import Policy, SearchConfig
from fasteraa.comparison.table import Comparison, ComparisonRow
from fasteraa.data import ImageSet, load
from fasteraa.errors import FasterAAError
from fasteraa.methods import Candidate
from fasteraa.methods.config import make_config, read_config
from fasteraa.methods.fast_aa import Journal, PolicyTrial
from fasteraa.nets.weights import read_weights
from fasteraa.offline.job import ApplyJob, ShardTask
from fasteraa.offline.run import MANIFEST, _intact
from fasteraa.offline.run import _open as begin_applying
from fasteraa.offline.writers import Sample, open_writer
from fasteraa.policy.importers import import_file
from fasteraa.report.comparison import publish, read_comparison
from fasteraa.report.outputs import _write_answer
from fasteraa.report.run_record import METRICS, read_run
from fasteraa.runtime.checkpoint import load_checkpoint, save_checkpoint
from fasteraa.runtime.decisions import Decisions
from fasteraa.runtime.files import sealed
from fasteraa.runtime.progress import Epoch
from fasteraa.runtime.run_folder import RunFolder
from fasteraa.selection.score_race import _Scores
from fasteraa.train.command import read_score
from fasteraa.train.job import TrainJob
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.run_cache import RunCache, pack
from fasteraa.train.split import Split
from fasteraa.train.statistics import estimate

EXAMPLES = int(os.environ.get("FASTERAA_FUZZ", "8"))
MOST_MEMORY = 256 << 20  # bytes, for files of some kilobytes
MOST_WORDS = 500
HOSTILE = [
    None, True, -1, 0, 1.5, 1e308, -1e308, float("nan"), float("inf"), 10**400, 2**63, "", "x" * 5000, "\x00", "\ud800",
    "\x1b[31m", "../../etc/passwd", "/dev/zero", [], {}, [[]] * 50, {"a": {"b": {}}},
]  # fmt: skip
# contents that once ended with a traceback, hung, or took all memory; tried as every format
PAST = [
    b"", b"\x00", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 20_000, b"9" * 5000, b"seed = " + b"9" * 5000, b"1e400",
    b"null",
    b'"\\ud800"', b"a = " + b"[" * 50_000, b".".join([b"a"] * 50_000) + b" = 1", b"PK\x05\x06" + bytes(18),
    b"PK\x03\x04" + b"\xff" * 200, b"path,label\n/dev/zero,a\n", b'{"path": "/dev/zero", "label": "a"}', bytes(1024),
]  # fmt: skip


@dataclass(frozen=True)
class Format:
    """A file in a folder of others, how it is read, and whether what was read is right."""

    make: Callable[[Path], Path]  # fills the folder, gives the file that is damaged
    read: Callable[[Path], Any]
    right: Callable[[Any], bool] = lambda found: True


# --- the formats -----------------------------------------------------------------------------------------------------

TOLD = {"race": {"sentence": "Use it (90.9% held-out error)"}}
POLICY = replace(Policy.named("autoaugment-cifar10"), provenance=TOLD)
CONFIG = SearchConfig(seed=3, epochs=6)
ROWS = [asdict(Epoch(number, 0.5 / number, 0.1, 0.2, 0.3, 0.01, 0.02, float(number))) for number in (1, 2, 3)]
STATE = {"epoch": 3, "weights": torch.arange(6.0)}
RESULT = {"chosen": "a", "policy": POLICY.hash, "table": [], "candidates": {}}
DECIDED = {"setup": {"seconds": 1.0}}
TRIALS = [PolicyTrial((1, 2), 0.5, 1.0), PolicyTrial((0, 1), 0.25, 2.0)]
RECORD = {"label": "none", "error": 12.5, "held_out_loss": 0.5, "train_loss": 0.4, "seconds": 1.0, "together": 1}


def save_policy(folder):
    POLICY.save(folder / "policy.json")
    return folder / "policy.json"


def sound_policy(found):
    return Policy.from_json(found.to_json()) == found


def save_config(folder):
    RunFolder(folder).write_config(CONFIG.toml("search") + "\n[run]\nmethods = ['faster-aa']\nrace = true\n")
    return folder / "config.toml"


def config_of_a_run(file):
    """As it is read to resume a run; a file that people write (--config) may hold anything valid."""
    RunFolder(file.parent).check_old()
    return make_config(read_config(file))


def save_run(name):
    def make(folder):
        run = RunFolder(folder)
        save_config(folder)
        _write_answer(POLICY, RESULT, run)
        own = run.of_method("faster-aa")
        own.mkdir(parents=True)
        (own / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        POLICY.save(own / "start.json")
        save_checkpoint(own / "checkpoint.pt", {**STATE, "epochs": ROWS})
        run.race.mkdir()
        Decisions(run.race / "schedule.json", "a race").decide("setup", lambda: {"seconds": 1.0})
        run.keep_source("photos", device="cpu")
        return folder / name

    return make


def same_run(found):
    """Of the files that are damaged; a result that does not name the policy is left out."""
    rows = [{name: row[name] for name in METRICS} for row in ROWS]
    return (
        (found.setup.config, found.setup.methods, list(found.metrics)) == (CONFIG, ("faster-aa",), rows)
        and found.policy == POLICY
        and found.policy.provenance == TOLD
        and (found.result == {} or RESULT.items() <= found.result.items())
    )


def save_state(folder):
    save_checkpoint(folder / "checkpoint.pt", STATE)
    return folder / "checkpoint.pt"


def same_state(found):
    return found is not None and found["epoch"] == 3 and torch.equal(found["weights"], STATE["weights"])


def job():
    data = ImageSet.of(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4) % 2, ("a", "b"), "black")
    recipe = TrainRecipe(network="small", epochs=1, batch_size=2, cutout=0)
    return TrainJob("none", Policy.named("none"), recipe, 0, Split(data, data, "itself"))


JOB = job()


def save_record(folder):
    cache = RunCache(folder).open()
    cache.write(JOB, RECORD)
    return cache.file(JOB)


def save_journal(folder):
    journal = Journal(folder / "1.jsonl", (3, 4))
    for trial in TRIALS:
        journal.append(trial)
    return folder / "1.jsonl"


def save_schedule(folder):
    Decisions(folder / "schedule.json", "a race").decide("setup", lambda: DECIDED["setup"])
    return folder / "schedule.json"


def pictures(folder):
    for number in range(4):
        Image.new("RGB", (8, 8), (60 * number, 9, 9)).save(folder / f"{number}.png")


def save_csv(folder):
    pictures(folder)
    (folder / "list.csv").write_text("path,label\n" + "".join(f"{n}.png,{'ab'[n % 2]}\n" for n in range(4)))
    return folder / "list.csv"


def save_jsonl(folder):
    pictures(folder)
    rows = ({"path": f"{n}.png", "label": "ab"[n % 2]} for n in range(4))
    (folder / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "list.jsonl"


def save_npz(folder):
    images = np.zeros((4, 8, 8, 3), np.uint8)
    np.savez(folder / "a.npz", x_train=images, y_train=np.arange(4) % 2)
    return folder / "a.npz"


def save_tar(folder):
    pictures(folder)
    with tarfile.open(folder / "a-000.tar", "w") as tar:
        for number in range(4):
            tar.add(folder / f"{number}.png", f"{number}.png")
            label = str(number % 2).encode()
            entry = tarfile.TarInfo(f"{number}.cls")
            entry.size = len(label)
            tar.addfile(entry, io.BytesIO(label))
    return folder / "a-000.tar"


def save_parquet(folder):
    pictures(folder)
    rows = {"path": [f"{n}.png" for n in range(4)], "label": [n % 2 for n in range(4)]}
    parquet.write_table(pyarrow.table(rows), folder / "list.parquet")
    return folder / "list.parquet"


def save_image(format, mode="RGB"):
    def make(folder):
        for name in "ab":
            (folder / name).mkdir()
            for number in range(2):
                Image.new(mode, (12, 9), 60 * number + ord(name)).save(folder / name / f"{number}.{format}")
        return folder / "a" / f"1.{format}"

    return make


def save_masks(folder):
    for part, mode in (("images", "RGB"), ("masks", "L")):
        (folder / part).mkdir()
        for number in range(4):
            Image.new(mode, (8, 8), number).save(folder / part / f"{number}.png")
    (folder / "classes.txt").write_text("sky\nroad\ncar\ntree\n")
    return folder


def save_idx(name):
    """Fashion-MNIST in its own format: numbers of what follows, then that."""

    def make(folder):
        raw = folder / "FashionMNIST" / "raw"
        raw.mkdir(parents=True)
        for part in ("train", "t10k"):
            (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, 4, 8, 8) + bytes(256))
            (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, 4) + bytes([0, 1, 0, 1]))
        return raw / name

    return make


def save_foreign(folder):
    (folder / "foreign.txt").write_text(str([[["Rotate", 0.5, 0.7], ["Invert", 0.2, 0.1]]]))
    return folder / "foreign.txt"


def save_comparison(folder):
    publish(COMPARISON, folder)
    return folder / "comparison.json"


def save_packed(folder):
    pack(folder, [save_record(folder)])
    for file in (folder / "runs").iterdir():
        file.unlink()
    return folder / "runs.json"


def save_score(folder):
    cache = _Scores(folder, "key", 1.0)
    cache.write(NONE, 0, 0.25, 1.0)
    return cache.path(NONE, 0) / "result.json"


def save_printed_score(folder):
    (folder / "log.txt").write_text("epoch 1\nscore: 0.25\n")
    (folder / "score.json").write_text('{"score": 0.25}')
    return folder / "score.json"


def applied_task(folder):
    job = ApplyJob(source=None, data_root=None, split="train", policy=POLICY.to_json(), out=str(folder), size=(8, 8))
    return ShardTask(job, 0)


def save_part(folder):
    """A finished part of `fasteraa apply`, without the seconds that it takes to make one."""
    task = applied_task(folder)
    begin_applying(task.job, ABOUT)
    task.record.parent.mkdir()
    with open_writer(task, ()) as writer:
        writer.write(Sample("a-0", 0, "png", b"pixels", None))
    task.record.write_text(json.dumps(sealed({"samples": 1, "broken": [], "files": writer.digests})))
    return task


def finished(folder):
    return dict(_intact([applied_task(folder)], print))


def whole_or_nothing(found):
    return found == {} or [record["samples"] for record in found.values()] == [1]


def save_weights(name, **options):
    def make(folder):
        save = save_file if name.endswith(".safetensors") else torch.save
        save({"head.weight": torch.arange(6.0)}, folder / name, **options)
        return folder / name

    return make


def plausible(found):
    return found.images.dtype == torch.uint8 and len(found.labels) == len(found.images) <= 8


def same_error(found):
    return found is None or found.error == RECORD["error"]


NONE = Candidate("none", Policy.named("none"))
ABOUT = {"source": {"name": "a"}, "settings": {"seed": 0, "policy": POLICY.hash}}
COMPARISON = Comparison(
    "a", 4, 4, "itself", JOB.recipe, "a CPU",
    (ComparisonRow("none", (NONE.policy.hash,), {0: 12.5, 1: 13.5}, estimate([12.5, 13.5]), {}, None, 1.0),), 0,
)  # fmt: skip


FORMATS = {
    "policy": Format(save_policy, Policy.load, sound_policy),
    "config": Format(save_config, config_of_a_run, lambda found: found == CONFIG),
    "checkpoint": Format(save_state, lambda file: load_checkpoint(file, "cpu", {"epoch": int}), same_state),
    "run, metrics": Format(
        save_run("methods/faster-aa/metrics.jsonl"), lambda file: read_run(file.parents[2]), same_run
    ),
    "run, checkpoint": Format(
        save_run("methods/faster-aa/checkpoint.pt"), lambda file: read_run(file.parents[2]), same_run
    ),
    "run, result": Format(save_run("result.json"), lambda file: read_run(file.parent), same_run),
    "run, policy": Format(save_run("policy.json"), lambda file: read_run(file.parent), same_run),
    "run, config": Format(save_run("config.toml"), lambda file: read_run(file.parent), same_run),
    "run, schedule": Format(save_run("race/schedule.json"), lambda file: read_run(file.parents[1]), same_run),
    "run, asked for": Format(
        save_run("source.json"), lambda file: RunFolder(file.parent).asked_for(), lambda found: isinstance(found, dict)
    ),
    "comparison": Format(save_comparison, read_comparison, lambda found: found == COMPARISON),
    "record": Format(save_record, lambda file: RunCache(file.parents[1]).read(JOB), same_error),
    "records, packed": Format(save_packed, lambda file: RunCache(file.parent).read(JOB), same_error),
    "score": Format(
        save_score, lambda file: _Scores(file.parents[1], "key", 1.0).read(NONE, 0), lambda found: found in (None, 0.25)
    ),
    "score of a command": Format(
        save_printed_score, lambda file: read_score(file.parent, file.parent / "log.txt"), math.isfinite
    ),
    "weights": Format(save_weights("weights.pt"), read_weights),
    "weights, of an old torch": Format(save_weights("weights.pth", _use_new_zipfile_serialization=False), read_weights),
    "weights, safetensors": Format(save_weights("weights.safetensors"), read_weights),
    "applied, manifest": Format(
        lambda folder: save_part(folder).job.folder / MANIFEST,
        lambda file: begin_applying(applied_task(file.parent).job, ABOUT),
    ),
    "applied, record": Format(
        lambda folder: save_part(folder).record, lambda file: finished(file.parents[1]), whole_or_nothing
    ),
    "applied, shard": Format(
        lambda folder: save_part(folder).shard, lambda file: finished(file.parent), whole_or_nothing
    ),
    "journal": Format(
        save_journal, lambda file: Journal(file, (3, 4)).read(), lambda found: found == TRIALS[: len(found)]
    ),
    "schedule": Format(save_schedule, lambda file: Decisions(file, "a race").content, lambda found: found == DECIDED),
    "manifest, csv": Format(save_csv, lambda file: load(file, size=8), plausible),
    "manifest, jsonl": Format(save_jsonl, lambda file: load(file, size=8), plausible),
    "manifest, parquet": Format(save_parquet, lambda file: load(file, size=8), plausible),
    "png": Format(save_image("png"), lambda file: load(file.parents[1], size=8, broken_budget=0.5), plausible),
    "png, 16 bits": Format(
        save_image("png", "I;16"), lambda file: load(file.parents[1], size=8, broken_budget=0.5), plausible
    ),
    "jpg": Format(save_image("jpg"), lambda file: load(file.parents[1], size=8, broken_budget=0.5), plausible),
    "mask": Format(
        lambda folder: save_masks(folder) / "masks" / "1.png",
        lambda file: load(file.parents[1], size=8, broken_budget=0.5),
    ),
    "classes": Format(
        lambda folder: save_masks(folder) / "classes.txt", lambda file: load(file.parent, size=8, broken_budget=0.5)
    ),
    "idx, images": Format(
        save_idx("train-images-idx3-ubyte"), lambda file: load("fashion-mnist", data_root=file.parents[2]), plausible
    ),
    "idx, labels": Format(
        save_idx("train-labels-idx1-ubyte"), lambda file: load("fashion-mnist", data_root=file.parents[2]), plausible
    ),
    "npz": Format(save_npz, lambda file: load(file, size=8), plausible),
    "tar": Format(save_tar, lambda file: load(str(file), size=8), plausible),
    "foreign policy": Format(save_foreign, lambda file: import_file(file, file.with_name("out.json"))),
}
WRITES = ("journal", "foreign policy", "applied, manifest")  # reading them may write


# --- damage ----------------------------------------------------------------------------------------------------------


def nodes(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from nodes(each, (*path, key))


def planted(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1 and new is nodes:  # left out
        del copy[path[0]]
    else:
        copy[path[0]] = planted(value[path[0]], path[1:], new)
    return copy


@st.composite
def damaged(draw, content):
    """Bytes that were flipped, cut, doubled or filled; or, where it is JSON, another value in its place."""
    kind = draw(st.sampled_from(["flip", "cut", "double", "fill", "value", "line"]))
    size = len(content)
    if kind == "value":
        lines = content.split(b"\n")
        whole = [content, *lines]
        chosen = draw(st.sampled_from(whole[:20]))
        try:
            value = json.loads(chosen)
        except ValueError:
            kind = "flip"
        else:
            path = draw(st.sampled_from(list(nodes(value))[:400]))
            new = draw(st.sampled_from([*HOSTILE, nodes]))
            value = planted(value, path, new if path or new is not nodes else None)
            return content.replace(chosen, json.dumps(value).encode(), 1)
    if kind == "line":
        lines = content.splitlines(keepends=True)
        place = draw(st.integers(0, max(len(lines) - 1, 0)))
        return b"".join(lines[:place] + draw(st.sampled_from([[], lines[place : place + 1] * 2])) + lines[place + 1 :])
    start = draw(st.integers(0, max(size - 1, 0)))
    end = min(size, start + draw(st.integers(1, 64)))
    if kind == "flip":
        return content[:start] + bytes([content[start] ^ (1 << draw(st.integers(0, 7)))]) + content[start + 1 :]
    if kind == "cut":
        return content[:start] + draw(st.sampled_from([b"", content[end:]]))
    if kind == "double":
        return content[:end] + content[start:]
    return content[:start] + bytes([draw(st.sampled_from([0, 255, 57]))]) * (end - start) + content[end:]


def promise(kind: Format, file: Path, may_write: bool) -> None:
    before = {each: each.read_bytes() for each in file.parent.rglob("*") if each.is_file()}
    tracemalloc.start()
    try:
        found = kind.read(file)
    except FasterAAError as error:
        said = str(error).replace(str(file), "FILE")
    else:
        said = ""
        assert kind.right(found)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(said) <= MOST_WORDS
    assert peak < MOST_MEMORY
    if not may_write:
        assert {each: each.read_bytes() for each in file.parent.rglob("*") if each.is_file()} == before


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_whole_is_read(name, tmp_path):
    kind = FORMATS[name]
    assert kind.right(kind.read(kind.make(tmp_path)))


@pytest.mark.parametrize("name", FORMATS)
def test_past_failures(name, tmp_path):
    file = FORMATS[name].make(tmp_path)
    for content in PAST:
        file.write_bytes(content)
        promise(Format(FORMATS[name].make, FORMATS[name].read), file, name in WRITES)


@pytest.mark.parametrize("name", FORMATS)
def test_damage(name, tmp_path):
    kind = FORMATS[name]
    file = kind.make(tmp_path)
    content = file.read_bytes()

    @settings(
        max_examples=EXAMPLES,
        deadline=20_000,  # milliseconds: it must end
        derandomize="FASTERAA_FUZZ" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(damaged(content))
    def always(broken):
        file.write_bytes(broken)
        promise(kind, file, name in WRITES)

    always()


def test_the_page_has_these_numbers():
    page = (Path(__file__).parents[1] / "docs" / "promises.md").read_text(encoding="utf-8")
    assert f"of each of {len(FORMATS)} kinds" in page
    for each in (200, 8, len(PAST)):
        assert f" | {each} " in page
        assert f"| {each * len(FORMATS):,} |" in page
