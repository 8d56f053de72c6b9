"""`fasteraa.search` without a race: any source, the folder of a run, resuming it, and being killed."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import fasteraa
from fasteraa import api
from fasteraa.data import ImageSet, load
from fasteraa.errors import ConfigError, DataError, RunError
from fasteraa.methods import Candidate, Method
from fasteraa.methods.config import SearchConfig, read_config, read_tables
from fasteraa.methods.faster_aa.run import gradient_search
from fasteraa.policy import Policy
from fasteraa.runtime.progress import Silent
from fasteraa.selection.config import RaceConfig

QUICK = SearchConfig(epochs=3, batch_size=16, sub_policies=2, ops=("flip", "invert", "brightness", "solarize"))


def search(source, config=QUICK, **options):
    return fasteraa.search(source, config, methods="faster-aa", race=False, device="cpu", **options)


def noise(count=32, seed=0):
    images = torch.randint(256, (count, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return ImageSet.of(images, torch.arange(count) % 2, ("a", "b"), "noise")


@pytest.fixture
def data():
    return noise()


# --- sources ---------------------------------------------------------------------------------------------------------


def test_any_source(tmp_path):
    once = replace(QUICK, epochs=1)
    with pytest.raises(DataError):
        search(tmp_path / "nothing")
    few = search(None, replace(once, classes=3, subset=60, size=12))
    assert len(few.data.classes) == 3
    assert len(few.data) == 60
    images = torch.randint(0, 256, (40, 3, 10, 10), dtype=torch.uint8)
    pairs = [(image, index % 2) for index, image in enumerate(images)]
    assert search(pairs, once).data.size == (10, 10)


@pytest.mark.parametrize(("device", "size", "side"), [("cpu", None, 32), ("cuda", None, 128), ("cpu", 40, 40)])
def test_a_cpu_searches_on_small_images(tmp_path, monkeypatch, device, size, side):
    """Unless it is asked for another size: its time goes with the pixels."""
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (200, 180), {"a": "red", "b": "blue"}[name]).save(tmp_path / name / "1.png")
    monkeypatch.setattr(api, "find_device", torch.device)
    assert api._load(tmp_path, replace(QUICK, size=size), None, device, None).size == (side, side)


# --- the folder ------------------------------------------------------------------------------------------------------


def test_the_result_and_the_folder(data, tmp_path):
    result = search(data, out=tmp_path / "run")
    assert result.race is None
    assert result.folder == tmp_path / "run"
    assert [each.label for each in result.candidates][:2] == ["faster-aa", "faster-aa-mild"]
    alone = gradient_search(data, QUICK, device="cpu").policy
    assert result.policy.hash == alone.hash == Policy.load(tmp_path / "run" / "methods/faster-aa/faster-aa.json").hash
    assert Policy.load(tmp_path / "run" / "policy.json") == result.policy
    assert result.policy.provenance["candidate"] == "faster-aa"
    assert result.policy.provenance["data"]["fingerprint"] == data.fingerprint
    assert result.details["faster-aa"]["finished"]
    for candidate in result.candidates:
        file = tmp_path / "run" / "candidates" / f"{candidate.label}.json"
        assert Policy.load(file).hash == candidate.policy.hash
    tables = read_tables(tmp_path / "run" / "config.toml")
    assert tables["run"] == {"methods": ["faster-aa"], "race": False}
    assert tables["search"]["epochs"] == 3
    assert json.loads((tmp_path / "run" / "result.json").read_text())["chosen"] == "faster-aa"
    files = {path.name for path in (tmp_path / "run").iterdir()} - {".lock"}
    assert files == {
        "config.toml", "policy.json", "candidates", "methods", "result.json", "summary.txt", "preview.png",
    }  # fmt: skip
    own = {path.name for path in (tmp_path / "run" / "methods" / "faster-aa").iterdir()}
    assert own == {"metrics.jsonl", "checkpoint.pt", "faster-aa.json", "start.json"}


@pytest.mark.parametrize(
    "name",
    [
        "policy.json",
        "result.json",
        "preview.png",
        *(f"methods/faster-aa/{name}" for name in ("metrics.jsonl", "faster-aa.json", "start.json")),
    ],
)
def test_a_resume_makes_what_is_lost_or_damaged_again(data, tmp_path, name):
    search(data, replace(QUICK, epochs=1), out=tmp_path)
    whole = (tmp_path / name).read_bytes()
    for content in (None, whole[: len(whole) // 2]):
        (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
        search(data, replace(QUICK, epochs=1), out=tmp_path, resume=True)
        assert (tmp_path / name).read_bytes() == whole


@pytest.mark.parametrize("name", ["policy.json", "methods"])
def test_what_lies_in_a_folder_is_not_overwritten(data, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunError, match=f"holds {name}, which the search would overwrite"):
        search(data, out=tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_folders_are_not_mixed_up(data, tmp_path):
    search(data, replace(QUICK, epochs=1), out=tmp_path / "run")
    with pytest.raises(RunError, match="holds a run already: add resume=True to continue it"):
        search(data, out=tmp_path / "run")
    with pytest.raises(RunError, match="started with seed = 0, now it is 5"):
        search(data, replace(QUICK, seed=5), out=tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="had other data"):
        search(noise(seed=1), out=tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="holds no run to resume"):
        search(data, out=tmp_path / "new", resume=True)
    with pytest.raises(ConfigError, match="resume needs the folder"):
        search(data, resume=True)


def contents(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != ".lock"}


def test_a_refused_resume_changes_nothing(data, tmp_path):
    search(data, replace(QUICK, epochs=1), out=tmp_path / "run")
    before = contents(tmp_path)
    with pytest.raises(RunError, match="had other data"):
        search(noise(seed=1), replace(QUICK, epochs=2), out=tmp_path / "run", resume=True)
    assert contents(tmp_path) == before


def test_what_a_race_chose_is_not_replaced_by_what_none_judged(data, tmp_path):
    search(data, replace(QUICK, epochs=1), out=tmp_path / "run")
    file = tmp_path / "run" / "policy.json"
    replace(Policy.named("none"), name="winner", provenance={"race": {"chosen": "none"}}).save(file)
    before = file.read_bytes(), (tmp_path / "run" / "summary.txt").read_bytes()
    result = search(data, replace(QUICK, epochs=2), out=tmp_path / "run", resume=True)
    assert (file.read_bytes(), (tmp_path / "run" / "summary.txt").read_bytes()) == before
    assert "stays as it was, winner: a race chose it." in result.note
    file.write_text("no policy at all")
    search(data, replace(QUICK, epochs=2), out=tmp_path / "run", resume=True)
    assert Policy.load(file).hash == result.policy.hash


def test_flipped_bits_in_a_checkpoint_and_lost_lines_of_settings(data, tmp_path):
    search(data, replace(QUICK, epochs=1), out=tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    whole = config.read_text().splitlines(keepends=True)
    for gone in [number for number, line in enumerate(whole) if line.startswith(("seed", "sub_policies", "crop"))]:
        config.write_text("".join(whole[:gone] + whole[gone + 1 :]))
        with pytest.raises(RunError, match="are not those that the run was begun with"):
            search(data, replace(QUICK, epochs=2), out=tmp_path / "run", resume=True)
    config.write_text("".join(whole))
    checkpoint = tmp_path / "run" / "methods" / "faster-aa" / "checkpoint.pt"
    content = checkpoint.read_bytes()
    for place in range(100, len(content), len(content) // 12):
        checkpoint.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        before = contents(tmp_path)
        with pytest.raises(RunError, match="is damaged"):
            search(data, replace(QUICK, epochs=2), out=tmp_path / "run", resume=True)
        assert contents(tmp_path) == before


def test_names_of_folders_that_are_none(data, tmp_path):
    with pytest.raises(ConfigError, match="out must name a folder"):
        search(data, out="")
    odd = tmp_path / os.fsdecode(b"r\xe9n\x1b[31m")
    search(data, replace(QUICK, epochs=1), out=odd)
    assert search(data, replace(QUICK, epochs=2), out=odd, resume=True).finished


class Picky(Method):
    """Looks at everything before it works."""

    name = "picky"

    def __init__(self):
        self.asked = []

    def check(self, config):
        self.asked.append(config.seed)

    def check_resumable(self, folder, config):
        self.asked.append((folder.of_method(self.name).name, config.seed))

    def candidates(self, task, budget, runner):
        return [Candidate("none", Policy.named("none"), details={"finished": False})]


def test_any_method_is_asked_before_anything_is_done_and_may_end_early(data, tmp_path):
    """And the critic of a search without a gradient search is nobody's business."""
    method, config = Picky(), replace(QUICK, critic="wrn-40")
    result = fasteraa.search(data, config, methods=[method], race=False, out=tmp_path / "run")
    assert "none ended early (--resume continues)." in (tmp_path / "run" / "summary.txt").read_text()
    assert result.policy.provenance["method"] == "picky"
    fasteraa.search(data, config, methods=[method], race=False, out=tmp_path / "run", resume=True)
    assert method.asked == [0, 0, ("picky", 0)]


def test_files_of_a_gradient_search_where_they_once_lay_are_refused(data, tmp_path):
    search(data, replace(QUICK, epochs=1), out=tmp_path)
    (tmp_path / "methods" / "faster-aa" / "checkpoint.pt").rename(tmp_path / "checkpoint.pt")
    with pytest.raises(RunError, match="is of an earlier version, which this version cannot resume"):
        search(data, replace(QUICK, epochs=1), out=tmp_path, resume=True)


def test_a_folder_that_cannot_be_written_is_noticed_first(data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="could not be written: a part of its path is a file"):
        search(data, out=tmp_path / "file" / "run")
    for resume in (False, True):
        with pytest.raises(RunError, match=r"a run needs a folder, .*file' is a file"):
            search(data, out=tmp_path / "file", resume=resume)


def test_names_are_checked_before_a_folder_is_made(data, tmp_path):
    with pytest.raises(ConfigError, match="unknown method 'faster-a': did you mean 'faster-aa'"):
        fasteraa.search(data, QUICK, methods="faster-a", out=tmp_path / "run")
    with pytest.raises(ConfigError, match="a network must have a known name, got 'wrn-40'"):
        search(data, replace(QUICK, critic="wrn-40"), out=tmp_path / "run")
    with pytest.raises(ConfigError, match="minutes must be at least 0, got -1"):
        search(data, minutes=-1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("source", ["nowhere", None])
def test_a_start_that_fails_leaves_the_disk_as_it_was(tmp_path, monkeypatch, source):
    """Images that are not there, and a subset that there cannot be."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    for out in ("runs/deep", "there"):
        with pytest.raises(DataError):
            search(source, replace(QUICK, subset=10**6), out=out)
    with pytest.raises(ConfigError, match="seeds and jobs must be at least 1"):
        fasteraa.race("general", train=lambda *given: 0.0, key="k", seeds=0, out="runs/scores")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


# --- resuming --------------------------------------------------------------------------------------------------------


class Stop(Exception):
    pass


class StopAfter(Silent):
    """Ends the run, as a crash would, after so many steps."""

    def __init__(self, steps):
        self.left = steps

    def step(self):
        self.left -= 1
        if self.left == 0:
            raise Stop


def test_a_run_that_crashed_is_resumed(data, tmp_path):
    with pytest.raises(Stop):
        search(data, out=tmp_path / "run", progress=StopAfter(5))
    assert not (tmp_path / "run" / "policy.json").exists()  # the answer is written at the end only
    assert search(data, out=tmp_path / "run", resume=True).policy.hash == search(data).policy.hash


def test_the_end_of_the_time_leaves_a_valid_policy(data, tmp_path):
    result = search(data, out=tmp_path / "run", minutes=0)
    assert not result.details["faster-aa"]["finished"]
    start = next(each.policy for each in result.candidates if each.label == "faster-aa-start")
    assert Policy.load(tmp_path / "run" / "policy.json").hash == start.hash
    rest = search(data, out=tmp_path / "run", resume=True)
    assert rest.details["faster-aa"]["finished"]
    assert rest.policy.hash == search(data).policy.hash == Policy.load(tmp_path / "run" / "policy.json").hash


def test_more_epochs_are_remembered(data, tmp_path):
    search(data, replace(QUICK, epochs=2), out=tmp_path / "run")
    with pytest.raises(RunError, match="has 2 epochs behind it, more than epochs = 1"):
        search(data, replace(QUICK, epochs=1), out=tmp_path / "run", resume=True)
    longer = search(data, out=tmp_path / "run", resume=True)
    assert longer.policy.hash == search(data).policy.hash
    assert read_config(tmp_path / "run" / "config.toml")["epochs"] == QUICK.epochs == 3


def test_a_run_with_fewer_images_than_a_batch_is_resumed(tmp_path):
    """The settings keep what was asked for, the policy what was done."""
    config, out = replace(QUICK, batch_size=128, epochs=1), tmp_path / "run"
    assert search(noise(9), config, out=out).policy.provenance["config"]["batch_size"] == 8
    assert read_config(out / "config.toml")["batch_size"] == 128
    longer = search(noise(9), replace(config, epochs=2), out=out, resume=True)
    assert longer.policy.hash == search(noise(9), replace(config, epochs=2, batch_size=8)).policy.hash
    with pytest.raises(RunError, match="was started with batch_size = 8, now it is 6"):
        search(noise(9), replace(config, epochs=2, batch_size=6), out=out, resume=True)


def test_a_run_of_version_0_1_is_not_resumed(data, tmp_path):
    """Its settings stand alone, under names of which some are gone."""
    (tmp_path / "config.toml").write_text('[search]\nbackbone = "auto"\nallowance = 1.0\nobjective = "hard"\n')
    with pytest.raises(RunError, match=r"is of version 0\.1, which this version cannot resume"):
        search(data, out=tmp_path, resume=True)


# --- signals: real processes -----------------------------------------------------------------------------------------

SCRIPT = """
import sys, torch, fasteraa
torch.set_num_threads(1)
from fasteraa.methods.config import SearchConfig
config = SearchConfig(epochs=6, batch_size=64, sub_policies=2, ops=("flip", "invert"), subset=320, size=12)
result = fasteraa.search(
    None, config, methods="faster-aa", race=False, out=sys.argv[1], resume="--resume" in sys.argv, device="cpu"
)
print(result.policy.hash)
"""


def start(folder, *arguments):
    command = [sys.executable, "-c", SCRIPT, str(folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path, process):
    end = time.monotonic() + 300
    while not path.exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_and_resumed(tmp_path):
    """SIGKILL in the middle, SIGTERM in the middle, then to the end: the same policy as in one go."""
    whole, _ = start(tmp_path / "whole").communicate(timeout=600)
    checkpoint = tmp_path / "cut" / "methods/faster-aa/checkpoint.pt"
    with start(tmp_path / "cut") as killed:
        wait_for(checkpoint, killed)
        killed.send_signal(signal.SIGKILL)
    before = checkpoint.stat().st_mtime_ns
    stopped = start(tmp_path / "cut", "--resume")
    while checkpoint.stat().st_mtime_ns == before and stopped.poll() is None:
        time.sleep(0.01)
    stopped.send_signal(signal.SIGTERM)
    _, error = stopped.communicate(timeout=300)
    assert "stopped by SIGTERM" in error
    assert "add resume=True to continue" in error
    resumed, _ = start(tmp_path / "cut", "--resume").communicate(timeout=600)
    assert resumed.strip() == whole.strip() != ""


def test_a_method_that_trains_without_a_race(tmp_path):
    """`training` says what its trainings are and how many; a race says so itself."""
    data, config = load(None, size=8, subset=60), SearchConfig(epochs=1, batch_size=16)
    training = RaceConfig(trainings=6, network="small", epochs=1, train={"batch_size": 16})
    result = fasteraa.search(data, config, methods="random", race=False, training=training, out=tmp_path, device="cpu")
    assert (result.race, result.policy.name) == (None, "random-top-5")
    records = [json.loads(file.read_text()) for file in (tmp_path / "race" / "runs").glob("*.json")]
    assert [record["recipe"]["epochs"] for record in records] == [1] * 6
    with pytest.raises(ConfigError, match="training is for methods without a race"):
        fasteraa.search(data, config, methods="random", training=training)


# --- memory ----------------------------------------------------------------------------------------------------------

SEARCHED = """
import resource, sys
import fasteraa
from fasteraa import SearchConfig
config = SearchConfig(epochs=1, batch_size=512, critic="small")
fasteraa.search(sys.argv[1], config, methods="faster-aa", race=False, minutes=0.2, device="cpu")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.alone
def test_memory_is_that_of_the_images_and_a_constant(tmp_path):
    """At most 1.3 times the images, beside what a search on a thousand takes."""
    peaks = {}
    for count in (1_000, 200_000):
        file = tmp_path / "images.npz"
        images = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        np.savez(file, x_train=images, y_train=np.arange(count) % 10)
        command = [sys.executable, "-c", SEARCHED, str(file)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks[count] = int(done.stdout.split()[-1])
    assert peaks[200_000] - peaks[1_000] < 1.3 * 199_000 * 32 * 32 * 3
