"""The product from Python and from the shell: the same seed gives the same policy, also after a kill in the middle."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

import fasteraa
from fasteraa import Candidate, RaceConfig, SearchConfig
from fasteraa.comparison.candidates import parse_candidates
from fasteraa.errors import ConfigError, DataError, PolicyError, RunError, Stopped
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.named import named
from fasteraa.report.comparison import read_comparison
from fasteraa.report.outputs import result_dict
from fasteraa.runtime.files import unsealed
from fasteraa.runtime.progress import Silent
from fasteraa.train.recipe import TrainRecipe

CONFIG = SearchConfig(seed=3, epochs=2, batch_size=16, sub_policies=2, subset=60, size=8)
RACE = RaceConfig(trainings=12, epochs=20)
FLAGS = ["--seed", 3, "--epochs", 2, "--batch-size", 16, "--sub-policies", 2, "--subset", 60, "--size", 8]
RACE_FLAGS = ["--race-trainings", 12, "--train-epochs", 20]
ALONE = ["--device", "cpu", "--jobs", 1]


def search(out=None, **given):
    return fasteraa.search(None, CONFIG, **{"race": RACE, "out": out, "device": "cpu", "jobs": 1, **given})


def begin(*arguments):
    """`fasteraa` as a shell runs it, with one thread, as the tests have one."""
    command = [sys.executable, "-m", "fasteraa", *map(str, arguments)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=one_thread)


def shell(*arguments):
    process = begin(*arguments)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A search from Python: its folder and its result."""
    folder = tmp_path_factory.mktemp("api") / "run"
    return folder, search(folder)


@pytest.fixture
def copy(finished, tmp_path):
    """Its folder, to do something to."""
    return shutil.copytree(finished[0], tmp_path / "run")


def kept(folder):
    """What a search leaves for people, as bytes."""
    names = ("policy.json", "result.json", "summary.txt", "preview.png", "methods/faster-aa/faster-aa.json")
    content = {name: (folder / name).read_bytes() for name in names}
    content["summary.txt"] = re.sub(rb"/\S+/run", b"RUN", content["summary.txt"])  # it says what to type
    return content | {file.name: file.read_bytes() for file in (folder / "candidates").iterdir()}


def read_result(folder):
    """Without the digest of the policy file beside it."""
    content = unsealed(json.loads((folder / "result.json").read_text()), needed=True)
    del content["about"]
    return content


def records(folder):
    """Of trainings; what is still being written has a name that begins with a point."""
    return list(folder.glob("race/runs/[!.]*.json"))


# --- the same again --------------------------------------------------------------------------------------------------


def test_a_search_leaves_what_it_returns(finished):
    folder, result = finished
    assert result.folder == folder
    assert fasteraa.load(folder).hash == result.policy.hash
    assert read_result(folder) == result_dict(result)
    assert {file.stem for file in (folder / "candidates").iterdir()} == {each.label for each in result.candidates}
    assert (folder / "summary.txt").read_text().startswith(f"Use {result.chosen}: ")
    trained = list((folder / "race" / "runs").glob("*.json"))
    assert len(trained) == sum(row.trainings for row in result.table) <= 12
    assert {row.label for row in result.table} <= {each.label for each in result.candidates}


@pytest.mark.slow
def test_the_shell_gives_the_policy_and_the_table_that_python_gives(finished, tmp_path):
    folder, result = finished
    code, out, err = shell("search", "--out", tmp_path / "run", *FLAGS, *RACE_FLAGS, *ALONE)
    assert code == 0, err
    assert f"Use {result.chosen}: " in out
    assert fasteraa.load(tmp_path / "run").hash == result.policy.hash
    assert read_result(tmp_path / "run") == result_dict(result)
    mine, theirs = (fasteraa.load(each).provenance["race"] for each in (folder, tmp_path / "run"))
    assert mine == theirs


@pytest.mark.slow
def test_killed_in_the_middle_of_its_race_and_resumed_it_is_the_same_search(finished, tmp_path):
    _, result = finished
    folder = tmp_path / "run"
    process = begin("search", "--out", folder, *FLAGS, *RACE_FLAGS, *ALONE)
    end = time.monotonic() + 120
    while len(records(folder)) < 3 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "is kept in" in err
    assert "--resume" in err
    before = {file.name: file.stat().st_mtime_ns for file in records(folder)}
    assert 3 <= len(before) < sum(row.trainings for row in result.table)
    assert not (folder / "policy.json").exists()
    code, _, err = shell("search", "--out", folder, "--resume", *ALONE)  # the settings are those of the folder
    assert code == 0, err
    assert read_result(folder) == result_dict(result)
    after = {file.name: file.stat().st_mtime_ns for file in records(folder)}
    assert {name: after[name] for name in before} == before  # nothing was run again


class StopsAt(Silent):
    """Ctrl-C at a sentence."""

    def __init__(self, words):
        self.words, self.said = words, []

    def say(self, text):
        self.said.append(text)
        if self.words in text:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("words", ["race, round 1", "race, round 2"])
def test_stopped_and_resumed_from_python_it_is_the_same_search(finished, tmp_path, words):
    _, result = finished
    with pytest.raises(
        Stopped, match=r"everything that was finished is kept in .*: add resume=True to continue"
    ) as caught:
        search(tmp_path / "run", progress=StopsAt(words))
    assert caught.value.exit_code == 130
    assert not (tmp_path / "run" / "policy.json").exists()
    with pytest.raises(PolicyError, match="has not ended yet"):
        fasteraa.load(tmp_path / "run")
    resumed = search(tmp_path / "run", resume=True)
    assert result_dict(resumed) == result_dict(result)
    assert resumed.table == result.table


def test_a_search_that_is_over_is_resumed_without_work(finished, copy):
    _, result = finished
    before = kept(copy)
    again = search(copy, resume=True)
    assert result_dict(again) == result_dict(result)
    assert kept(copy) == before


def test_without_a_folder_it_is_the_same_and_nothing_is_left(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert result_dict(search()) == result_dict(finished[1])
    assert list(tmp_path.iterdir()) == []


def test_another_seed_is_another_search(finished):
    other = fasteraa.search(None, replace(CONFIG, seed=4), race=RACE, device="cpu", jobs=1)
    assert other.table != finished[1].table


# --- the answer is replaced only by another answer -------------------------------------------------------------------


def test_a_resume_that_fails_leaves_the_answer_as_it_was(copy):
    before = kept(copy)
    (copy / "race" / "schedule.json").write_text("")
    with pytest.raises(RunError, match=r"schedule\.json' cannot be read .*: remove it to plan the race again"):
        search(copy, resume=True)
    assert kept(copy) == before
    run = next((copy / "race" / "runs").iterdir())
    (copy / "race" / "schedule.json").unlink()
    run.write_text("{")
    with pytest.raises(RunError, match=rf"{run.name}' cannot be read .*: remove it to run it again"):
        search(copy, resume=True)
    assert kept(copy) == before
    run.unlink()
    (copy / "methods/faster-aa/checkpoint.pt").write_bytes(b"no checkpoint")
    with pytest.raises(RunError, match=r"checkpoint\.pt' (is damaged|could not be read)"):
        search(copy, resume=True)
    assert kept(copy) == before


OTHERS = {
    "methods = ['faster-aa', 'op-effects', 'published'], now ['published']": {"methods": "published"},
    "metric = 'error', now 'loss'": {"race": replace(RACE, metric="loss")},
    "network = None, now 'wrn-40-2'": {"race": replace(RACE, network="wrn-40-2")},
    "trainings = 12, now 6; train.warmup = None, now 0": {"race": replace(RACE, trainings=6, train={"warmup": 0})},
}


@pytest.mark.parametrize("words", OTHERS)
def test_another_race_does_not_replace_the_answer(copy, words):
    before = {file: file.read_bytes() for file in copy.rglob("*") if file.is_file() and file.name != ".lock"}
    with pytest.raises(RunError, match=re.escape(f"was begun with {words}: resume it with its own settings")) as told:
        search(copy, resume=True, **OTHERS[words])
    assert "choose another folder (--out)" in str(told.value)
    assert {file: file.read_bytes() for file in before} == before


def test_a_race_that_was_stopped_continues_with_its_own_settings_alone(tmp_path):
    with pytest.raises(Stopped):
        search(tmp_path / "run", progress=StopsAt("race, round 1"))
    config = (tmp_path / "run" / "config.toml").read_bytes()
    with pytest.raises(RunError, match="metric = 'error', now 'loss'"):
        search(tmp_path / "run", resume=True, race=replace(RACE, metric="loss"))
    assert (tmp_path / "run" / "config.toml").read_bytes() == config


def test_what_was_removed_is_made_again(finished, copy):
    before = kept(copy)
    shutil.rmtree(copy / "race")
    search(copy, resume=True)
    assert kept(copy) == before


# --- without a race --------------------------------------------------------------------------------------------------


def test_without_a_race_it_is_the_policy_of_the_first_method(tmp_path, fasteraa):
    code, out, err = fasteraa("search", "--out", tmp_path / "run", "--no-race", *FLAGS, "--device", "cpu")
    assert code == 0, err
    assert "Use faster-aa: it is what its method proposes, and was not raced." in out
    policy, gradient = (
        json.loads((tmp_path / "run" / name).read_text())
        for name in ("policy.json", "methods/faster-aa/faster-aa.json")
    )
    assert policy["sub_policies"] == gradient["sub_policies"]
    assert policy["provenance"]["candidate"] == "faster-aa"
    assert "race" not in policy["provenance"]
    assert not (tmp_path / "run" / "race").exists()


def test_the_first_method_is_the_first_that_was_named(tmp_path):
    result = search(tmp_path / "run", race=False, methods="published,faster-aa")
    assert (result.chosen, result.table, result.race) == ("randaugment-2-9", (), None)
    assert not (tmp_path / "run" / "methods/faster-aa/faster-aa.json").exists()


# --- what is refused before any work ---------------------------------------------------------------------------------


def test_what_cannot_be_is_noticed_before_images_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("fasteraa.api.load", lambda *given, **options: pytest.fail("images were read"))
    out = tmp_path / "run"
    for words, given in {
        "resume needs the folder of the run: out": {"resume": True},
        "minutes must be at least 0, got -1": {"minutes": -1.0, "out": out},
        "unknown device 'gpu'": {"device": "gpu", "out": out},
        "jobs must be at least 1, got 0": {"jobs": 0, "out": out},
        "unknown method 'faster-a': did you mean 'faster-aa'": {"methods": "faster-a", "out": out},
        "did you mean 'small'": {"race": RaceConfig(network="smal"), "out": out},
    }.items():
        with pytest.raises(ConfigError, match=words):
            search(**given)
    with pytest.raises(RunError, match="holds no run to resume"):
        search(out, resume=True)
    assert not out.exists()


def test_a_folder_that_holds_a_run_is_not_begun_again(copy):
    before = kept(copy)
    with pytest.raises(RunError, match="holds a run already"):
        search(copy)
    with pytest.raises(RunError, match="was started with seed = 3, now it is 4"):
        fasteraa.search(None, replace(CONFIG, seed=4), race=RACE, out=copy, resume=True)
    assert kept(copy) == before


def test_a_folder_among_the_images_is_refused(tmp_path):
    (tmp_path / "photos" / "ants").mkdir(parents=True)
    with pytest.raises(DataError, match="lies in the folder of the images"):
        fasteraa.search(tmp_path / "photos", out=tmp_path / "photos" / "run", device="cpu")


# --- race ------------------------------------------------------------------------------------------------------------


SHORT = RaceConfig(trainings=9, epochs=2)


of_functions = fasteraa.race  # a test may have a fixture of the module's name


def race(candidates, **given):
    return fasteraa.race(candidates, None, CONFIG, race=SHORT, device="cpu", jobs=1, **given)


def test_policies_are_raced_by_name_file_and_object(tmp_path):
    """`none` is always among them; labels can be typed, whatever the name of a policy is."""
    replace(named("random", seed=2), name="found on my photos").save(tmp_path / "mine.json")
    given = ["randaugment(2,14)", str(tmp_path / "mine.json"), named("uniform"), Candidate("last", named("general"))]
    result = race(given, out=tmp_path / "run")
    labels = ["none", "randaugment-2-14", "found-on-my-photos", "uniform", "last"]
    assert [each.label for each in result.candidates] == labels
    assert {row.label for row in result.table} == set(labels)
    assert result.policy.provenance["race"]["chosen"] == result.chosen
    assert result.policy.provenance["data"]["images"] == 60
    assert fasteraa.load(tmp_path / "run").hash == result.policy.hash
    assert not (tmp_path / "run" / "methods/faster-aa/checkpoint.pt").exists()  # there was no search


def test_names_with_settings_have_commas_of_their_own():
    result = race("randaugment(2,14), mine=uniform, General")
    assert [each.label for each in result.candidates] == ["none", "randaugment-2-14", "mine", "general"]


def test_a_list_of_policies_is_read_as_a_text_of_them():
    candidates = parse_candidates(["none", "mine=uniform", named("general")], print)
    assert [each.label for each in candidates] == ["none", "mine", "general"]
    with pytest.raises(ConfigError, match="no policy was given; for example"):
        parse_candidates([], print)


def test_what_does_nothing_is_none_whatever_its_name():
    faint = replace(named("uniform").with_strength(magnitude=0, probability=0), name="faint")
    result = race([named("uniform"), replace(named("none"), name="mine"), faint])
    assert [each.label for each in result.candidates] == ["none", "uniform"]


def test_a_schedule_that_does_nothing_is_none_in_a_race_by_any_training(tmp_path):
    said, nothing = [], (Choice("rotate", 0.0, 1.0),)
    idle = Policy((SubPolicy((nothing,), during=(0, 0.5)), SubPolicy((), during=(0.5, 1))), "mine")
    result = fasteraa.race(
        [idle, "cutout"], train=lambda policy, seed, out: 0.0 if policy.name == "mine" else 0.3,
        key="k", out=tmp_path / "run", progress=told(said.append),
    )  # fmt: skip
    assert [row.label for row in result.table] == ["none", "cutout"]
    assert said[0] == "mine leaves every image as it is, so it races as none"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"source": "photos"},
            "source has no effect with train=, which reads its own images and trains in its own way",
        ),
        ({"config": CONFIG, "device": "cpu"}, "config, device have no effect with train="),
        ({"data_root": ".", "devices": "0", "address": "auto"}, "data_root, devices, address have no effect with"),
        ({"engine": "ray"}, "engine has no effect with"),
        ({"race": replace(SHORT, minutes=3)}, "race.trainings, race.epochs have no effect with"),
        ({"train": None, "key": "k"}, "key has no effect without train="),
        ({"train": None, "seeds": 2, "maximize": True}, "seeds, maximize have no effect without train="),
    ],
)
def test_what_has_no_effect_on_a_race_is_refused(given, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        fasteraa.race("none,cutout", **{"train": lambda *given: 0.3, "out": tmp_path / "run", **given})
    assert not (tmp_path / "run").exists()


def test_a_function_is_named_by_its_code(tmp_path):
    """Another one of the same name trains again, in the same folder; minutes and resume have an effect."""
    for score in (0.3, 0.4):
        result = fasteraa.race(
            "none", train=lambda policy, seed, out, score=score: score, seeds=1, out=tmp_path, resume=True,
            race=RaceConfig(minutes=1),
        )  # fmt: skip
        assert result.table[0].score == score


def test_a_race_repeats_itself_and_continues(tmp_path):
    first = race("uniform,general", out=tmp_path / "a")
    assert result_dict(race("uniform,general")) == result_dict(first)
    again = race("uniform,general", out=tmp_path / "a", resume=True)
    assert result_dict(again) == result_dict(first)
    with pytest.raises(ConfigError, match="two policies are called 'uniform'"):
        race([named("uniform"), replace(named("general"), name="uniform")])


def test_a_limit_on_everything_ends_a_race_too(tmp_path, fasteraa):
    result = race("uniform,general", minutes=0.01)
    assert (result.chosen, result.note) == ("uniform", "There was no race: the time was up before one could begin.")
    with pytest.raises(ConfigError, match="minutes must be at least 0, got -1"):
        of_functions("uniform", minutes=-1, train=lambda policy, seed, out: 0.0, key="mine", out=tmp_path / "run")
    given = ["race", "-p", "uniform", "--subset", 60, "--size", 8, "--minutes", 0, "--out", tmp_path / "shell", *ALONE]
    code, out, _ = fasteraa(*given)
    assert (code, "There was no race: the time was up" in out) == (0, True)


@pytest.mark.slow
def test_the_shell_races_as_python_does(tmp_path):
    flags = ["--seed", 3, "--subset", 60, "--size", 8, "--race-trainings", 9, "--train-epochs", 2, *ALONE]
    code, out, err = shell("race", "-p", "randaugment(2,14),uniform", "--out", tmp_path / "run", *flags)
    assert code == 0, err
    result = race("randaugment(2,14),uniform")
    assert f"Use {result.chosen}: " in out
    assert json.loads((tmp_path / "run" / "result.json").read_text())["table"] == result_dict(result)["table"]


# --- compare ---------------------------------------------------------------------------------------------------------


QUICK = TrainRecipe(network="small", epochs=1, batch_size=16, learning_rate=0.05, cutout=0)


def arrays(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8), np.arange(count) % 2


def told(say):
    """Progress that goes to a function."""
    progress = Silent()
    progress.say = say
    return progress


def compare(source, policies, **given):
    return fasteraa.compare(source, policies, **{"seeds": 2, "recipe": QUICK, "jobs": 1, "device": "cpu", **given})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"jobs": -1}, "jobs must be at least 1"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"network": "resnet-50"}, "the recipe is one for small, but the network was to be resnet-50"),
        ({"minutes": -1}, "minutes must be at least 0, got -1"),
        ({"device": "gpu"}, "unknown device"),
        ({"train": {"epoch": 3}}, "unknown setting 'epoch'"),
        ({"held_out": 1.0}, r"held-out share must be in \(0, 1\), got 1"),
    ],
)
def test_comparisons_that_cannot_be(given, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        compare(arrays(20), "none", out=tmp_path, **given)
    assert not list(tmp_path.glob("runs/*"))


def test_policies_are_compared(tmp_path):
    said, data = [], arrays(60)
    table = compare(data, "none,random", out=tmp_path, progress=told(said.append))
    assert [row.label for row in table.rows] == ["none", "random"]
    assert table.held_out_images == 12  # 20% of 60
    assert len(table.rows[1].hashes) == 2
    assert table.missing == 0
    assert read_comparison(tmp_path / "comparison.json") == table
    assert said[0].endswith(
        "48 images at 8x8, 4 runs of the small network for 1 epoch on CPU; measured on 12 images "
        "(20% of the training images)"
    )
    early = compare(data, "none,uniform", out=tmp_path, minutes=0, progress=told(said.append))
    assert early.missing == 2
    assert [row.label for row in early.rows] == ["none"]  # those runs are there already
    assert (early.absent, early.missing_seeds) == (("uniform",), {"uniform": (0, 1)})
    longer = compare(data, "none", out=tmp_path, train={"epochs": 2}, progress=told(said.append))
    assert longer.recipe.epochs == 2


def test_images_that_are_trained_and_measured_on_are_told(tmp_path):
    (x, y), (tx, ty) = arrays(20), arrays(6, 1)
    tx[[1, 4]] = x[7]
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=tx, y_test=ty)
    said, words = [], "2 of the 6 held-out images are among the training images, too (the same pixels)"
    table = compare(str(tmp_path / "d.npz"), "none", out=tmp_path / "out", seeds=1, progress=told(said.append))
    assert said[0].startswith(words)
    assert words in (tmp_path / "out" / "comparison.md").read_text()
    assert read_comparison(tmp_path / "out" / "comparison.json").overlap_count == table.overlap_count == 2


def test_ctrl_c_leaves_a_table_of_what_was_finished(tmp_path):
    def stop(text):
        if text.startswith("2/4"):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped, match=r"2 of 4 runs were finished and are kept in .*: give the same command again"):
        compare(arrays(60), "none,uniform", out=tmp_path, progress=told(stop))
    table = read_comparison(tmp_path / "comparison.json")
    assert (table.missing, [row.label for row in table.rows]) == (2, ["none", "uniform"])
    assert compare(arrays(60), "none,uniform", out=tmp_path, progress=Silent()).missing == 0


def test_a_run_that_failed_is_named_and_takes_no_other_with_it(tmp_path):
    table = compare(
        arrays(60), "none,uniform", out=tmp_path, train={"learning_rate": 1e30, "clip": 0}, progress=Silent()
    )
    assert len(table.diverged) == 4
    assert table.diverged[0].startswith("none, seed 0 (the training loss was not finite in epoch ")
    assert table.rows == ()
    assert table.absent == ("none", "uniform")


def test_threads_wait_passively_unless_told_otherwise():
    """Where other programs use the cores, threads that spin cost several times the time of a search."""
    code = "import fasteraa, os, sys; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    rest = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    for given, words in (({}, "PASSIVE False"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE False")):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**rest, **given})
        assert done.stdout.strip() == words
