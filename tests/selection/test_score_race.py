"""A race by any training: scores of a function or of a command, paired by seed, cached, failures named."""

import hashlib
import json
import shutil
import sys
import textwrap
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

import fasteraa
from fasteraa.errors import ConfigError, RaceError, RunError
from fasteraa.methods import Candidate
from fasteraa.policy import Policy
from fasteraa.selection import score_race
from fasteraa.selection.score_race import race_scores
from fasteraa.train.command import Command, NoTimeLeft, read_score, visible_gpus

NAMES = ("none", "uniform", "general", "trivialaugment-wide", "cutout")
MEANS = dict(zip(NAMES, (0.30, 0.25, 0.40, 0.35, 0.20), strict=True))


def candidates(*names):
    return [Candidate(name, Policy.named(name)) for name in names or NAMES]


def score_of(policy, seed, out):
    return MEANS[policy.name] + 0.01 * seed


@pytest.fixture
def race(tmp_path):
    def run(train=score_of, names=NAMES, **options):
        return race_scores(candidates(*names), train, **{"folder": tmp_path / "scores", "key": "k", **options})

    return run


def test_the_best_is_chosen_and_the_worse_half_is_eliminated(race):
    result = race()
    assert result.chosen == "cutout"
    assert result.policy.hash == Policy.named("cutout").hash
    runs = {row.label: len(row.scores) for row in result.table}
    assert runs == {"cutout": 3, "uniform": 3, "none": 3, "trivialaugment-wide": 1, "general": 1}
    row = result.table[0]
    assert row.score == pytest.approx(0.21)
    assert row.against_none.mean == pytest.approx(-0.1)
    assert 0.99 < row.better < 1
    assert "Use cutout: score 0.21 against 0.31" in result.sentence()


def test_what_is_not_better_than_none_is_not_chosen(race):
    result = race(lambda policy, seed, out: 0.1 if policy.name == "none" else 0.2)
    assert result.chosen == "none"
    assert "no policy did better" in result.sentence()


def test_larger_may_be_better(race):
    result = race(maximize=True)
    assert result.chosen == "general"
    assert result.table[0].score == pytest.approx(0.41)
    assert result.table[0].against_none.mean == pytest.approx(0.1)


def test_nothing_runs_twice_and_a_failed_run_is_tried_again(race):
    calls = []

    def train(policy, seed, out):
        calls.append((policy.name, seed))
        if policy.name == "uniform" and calls.count(("uniform", 0)) < 2:
            return float("nan")
        return score_of(policy, seed, out)

    first = race(train)
    assert next(row for row in first.table if row.label == "uniform").failed == "its score is not finite: nan (uniform)"
    assert first.chosen == "cutout"
    before = len(calls)
    second = race(train)
    assert calls[before:][0] == ("uniform", 0)
    assert next(row for row in second.table if row.label == "uniform").failed is None
    done = len(calls)
    assert race(train).table == second.table
    assert len(calls) == done


def test_without_none_there_is_nothing_to_beat(race):
    with pytest.raises(RaceError, match="needs 'none'"):
        race(names=("uniform", "general"))
    with pytest.raises(RaceError, match="without augmentation gave no score: its score is not finite"):
        race(lambda policy, seed, out: float("inf"))


def test_what_is_not_probably_better_is_not_chosen(race):
    noisy = {"none": (0.30, 0.30, 0.30), "uniform": (0.20, 0.35, 0.32)}
    result = race(lambda policy, seed, out: noisy[policy.name][seed], names=("none", "uniform"))
    assert result.chosen == "none"
    assert "uniform has 0.29, but is better with a probability of 58% only" in result.sentence()


def test_the_noise_is_that_of_all_finalists(race):
    """Its own differences are alike by luck; those of the others show that seeds differ more."""
    noisy = {"none": (0.30, 0.34, 0.30), "uniform": (0.26, 0.30, 0.26), "cutout": (0.29, 0.18, 0.49)}

    def score(policy, seed, out):
        return noisy[policy.name][seed]

    alone = race(score, names=("none", "uniform"))
    assert alone.chosen == "uniform"
    assert "difference -0.04, better with probability 92%" in alone.sentence()  # as scores of several seeds differ
    three = race(score, names=("none", "uniform", "cutout"))  # none of them is eliminated
    assert three.chosen == "none"
    rows = {row.label: row for row in three.table}
    assert len(rows["cutout"].scores) == len(rows["uniform"].scores) == 3
    assert 0.5 < rows["uniform"].better < 0.8


def test_a_function_that_raises_is_named_and_the_race_goes_on(race):
    def train(policy, seed, out):
        if policy.name == "cutout":
            raise ValueError("no such layer")
        return score_of(policy, seed, out)

    result = race(train)
    assert result.chosen == "uniform"
    assert result.table[-1].failed == "ValueError: no such layer"


def test_none_is_tried_twice(race):
    calls = []

    def train(policy, seed, out):
        calls.append((policy.name, seed))
        assert policy.name != "none" or calls.count(("none", seed)) == 2
        return score_of(policy, seed, out)

    assert race(train).chosen == "cutout"
    assert calls.count(("none", 0)) == 2
    assert calls.count(("cutout", 0)) == 1


def test_a_run_begins_with_an_empty_folder(race):
    def train(policy, seed, out):
        assert not list(out.iterdir())
        (out / "score.json").write_text("{}")
        raise OSError("full")

    for _ in range(2):
        with pytest.raises(RaceError, match="OSError: full"):
            race(train, seeds=1)


def test_each_run_gets_the_gpu_that_is_free(race):
    seen, done = {}, threading.Event()

    def train(policy, seed, out, gpu):
        seen[policy.name] = gpu
        if policy.name == "none":
            assert done.wait(30)  # the others go by on the second GPU
        elif len(seen) == 4:
            done.set()
        return score_of(policy, seed, out)

    race(train, names=NAMES[:4], jobs=2, gpus=("4", "7"), seeds=1)
    assert seen == {"none": "4", "uniform": "7", "general": "7", "trivialaugment-wide": "7"}


@pytest.mark.parametrize(("given", "names"), [(None, ["0", "1"]), ("", []), ("3, 5", ["3", "5"])])
def test_gpus_that_are_visible(given, names, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert visible_gpus(2) == names


def test_several_at_once(race):
    barrier = threading.Barrier(2, timeout=30)

    def train(policy, seed, out):
        barrier.wait()
        return score_of(policy, seed, out)

    assert {row.failed for row in race(train, names=NAMES[:4], jobs=2, seeds=1).table} == {None}


def test_a_limit_on_everything_holds_in_the_first_round(race, monkeypatch):
    clock = SimpleNamespace(now=0.0, time=lambda: clock.now, monotonic=lambda: clock.now)
    monkeypatch.setattr(score_race, "time", clock)

    def train(policy, seed, out):
        clock.now += 2
        return score_of(policy, seed, out)

    with pytest.raises(RaceError, match="without augmentation gave no score: time was up"):
        race(train, until=0.0)
    result = race(train, until=3.0)
    assert {row.label: row.failed for row in result.table if row.failed} == dict.fromkeys(NAMES[2:], "not run")
    assert "uniform has 0.25" in result.sentence()


def test_time_that_is_up_ends_it_after_the_first_round(race):
    said = []
    result = race(seconds=0.0, say=said.append)
    assert all(len(row.scores) == 1 for row in result.table)
    assert "time is up after 1 of 3 rounds" in said
    assert result.chosen == "none"


def test_one_run_tells_no_probability(race):
    result = race(seeds=1)
    assert (result.chosen, result.policy.hash) == ("none", Policy.named("none").hash)
    assert result.sentence() == (
        "Use none: score 0.3 (1 run); cutout has 0.2, but one run does not tell whether it is better: two or more "
        "seeds would (--seeds)."
    )
    assert "general has 0.4" in race(seeds=1, maximize=True).sentence()


def test_seeds_that_change_nothing_are_one_run(race):
    result = race(lambda policy, seed, out: MEANS[policy.name])
    assert result.chosen == "none"
    assert {row.better for row in result.table} == {None}
    assert "cutout has 0.2, but every seed gave the same scores, so chance is not known" in result.sentence()


def test_seeds_that_change_nothing_do_not_make_the_others_sure(race):
    """The noise is that of the one policy whose runs differ, not less."""
    noisy = {"none": (0.30,) * 3, "uniform": (0.28,) * 3, "cutout": (0.22, 0.32, 0.27)}
    result = race(lambda policy, seed, out: noisy[policy.name][seed], names=("none", "uniform", "cutout"))
    better = {row.label: row.better for row in result.table}
    assert better == {"none": None, "uniform": None, "cutout": pytest.approx(0.796, abs=0.001)}  # t = 1.04, 2 degrees
    noisy |= {"trivialaugment-wide": (0.29, 0.23, 0.0), "general": (0.9,) * 3}
    result = race(lambda policy, seed, out: noisy[policy.name][seed], seeds=2, key="other")
    assert {row.label for row in result.table if row.better is not None} == {"cutout", "trivialaugment-wide"}


def test_a_round_that_was_cut_off_counts_where_it_compares_something(race):
    """Scores of the second round come to fewer policies each time."""
    outcomes, said = {}, []

    def train(policy, seed, out):
        if seed and policy.name not in outcomes:
            raise NoTimeLeft("time was up")
        return score_of(policy, seed, out)

    outcomes["none"] = True
    result = race(train, say=said.append, names=("none", "uniform", "cutout"))
    assert (result.chosen, {len(row.scores) for row in result.table}) == ("none", {1})
    assert "round 2 was cut off and does not count: nothing in it can be compared with none" in said
    outcomes["uniform"] = True
    result = race(train, names=("none", "uniform", "cutout"))
    assert {row.label: (len(row.scores), row.failed) for row in result.table}["cutout"] == (1, None)
    assert result.chosen == "uniform"


def test_a_damaged_score_is_named(race, tmp_path):
    race()
    file = next((tmp_path / "scores").glob("cutout-0-*/result.json"))
    file.write_text("{}")
    with pytest.raises(RunError, match=r"result\.json' cannot be read \('score'\): remove it"):
        race()


@pytest.mark.parametrize("other", ["none-0-*", "cutout-1-*"])
def test_the_score_of_another_policy_or_seed_is_named(race, tmp_path, other):
    race()
    source, target = (next((tmp_path / "scores").glob(f"{name}/result.json")) for name in (other, "cutout-0-*"))
    shutil.copy(source, target)
    with pytest.raises(RunError, match=r"result\.json' cannot be read \(it is of another run\): remove it"):
        race()


def test_from_python(tmp_path):
    result = fasteraa.race(["trivialaugment-wide", "uniform"], train=score_of, key="mine", out=tmp_path, seeds=2)
    assert result.chosen == "uniform"  # and none took part
    assert fasteraa.load(tmp_path).hash == Policy.named("uniform").hash
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["table"][0]["label"] == "uniform"
    assert (tmp_path / "summary.txt").read_text().startswith("Use uniform: score")


# --- commands ------------------------------------------------------------------------------------------------------


def command(body, *words, **options):
    text = textwrap.dedent(body)
    given = (sys.executable, "-c", text, *(words or ("{policy}", "{seed}", "{out}")))
    return Command(given, lambda policy, path: policy.save(path), **options)


def test_a_command_prints_its_score(tmp_path):
    body = """
        import json, sys
        policy, seed, out = sys.argv[1:]
        print("score: 9"); print(json.load(open(policy))["name"]); print("score:", 0.5 + int(seed))
    """
    assert command(body)(Policy.named("uniform"), 2, tmp_path) == 2.5
    assert "uniform" in (tmp_path / "log.txt").read_text()


def test_the_folder_of_a_command_is_empty(tmp_path):
    """Scripts of Hugging Face refuse any other; the policy and the log are beside it."""
    body = "import os, sys; print('score:', len(os.listdir(sys.argv[3])))"
    assert command(body)(Policy.named("none"), 0, tmp_path) == 0
    assert {each.name for each in tmp_path.iterdir()} == {"policy.json", "log.txt", "out"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_end_of_the_race_ends_a_command_that_hangs(jobs, race):
    body = """
        import json, sys, time
        time.sleep(60 * (json.load(open(sys.argv[1]))["name"] != "none")); print("score: 1")
    """
    said = []
    race(command(body), names=("none",), seeds=1)
    result = race(command(body), names=("none", "uniform"), jobs=jobs, until=time.time() + 2, say=said.append)
    assert result.chosen == "none"
    assert "time was up; its output is in" in result.table[1].failed
    assert any(line.startswith("  uniform, seed 0: ended after") for line in said)


def test_a_command_that_takes_far_longer_than_the_others_is_ended(race, monkeypatch):
    monkeypatch.setattr(score_race, "_HANGS", (1, 1.0))
    body = """
        import json, sys, time
        time.sleep(60 * (json.load(open(sys.argv[1]))["name"] != "none")); print("score: 1")
    """
    result = race(command(body), names=("none", "uniform"), seeds=1)
    assert "far longer than the others (--run-minutes allows more)" in result.table[1].failed


def test_a_command_that_hangs_beside_others_is_ended(race, monkeypatch):
    """Its limit is not known yet when it begins."""
    monkeypatch.setattr(score_race, "_HANGS", (1, 0.1))
    monkeypatch.setattr("fasteraa.train.command._LOOK_S", 0.02)
    body = """
        import json, sys, time
        time.sleep(60 * (json.load(open(sys.argv[1]))["name"] != "none")); print("score: 1")
    """
    result = race(command(body), names=("none", "uniform"), jobs=2, seeds=1)
    assert "far longer than the others (--run-minutes allows more)" in result.table[1].failed


@dataclass(frozen=True)
class Waits(Command):
    """A run ends when it may."""

    may: threading.Event = field(default_factory=threading.Event)

    def __call__(self, policy, seed, folder, gpu=None, **limits):
        assert self.may.wait(30)
        return MEANS[policy.name]


WAITS = ("true", "{policy}")


@pytest.mark.parametrize("jobs", [1, 2])
def test_where_no_run_ends_for_long_it_says_so(jobs, race, monkeypatch):
    monkeypatch.setattr(score_race, "_QUIET", 0.01)
    waits, said = Waits(WAITS, lambda *_: None), []

    def say(text):
        said.append(text)
        if "no run has ended" in text:
            waits.may.set()

    race(waits, names=("none", "uniform"), jobs=jobs, seeds=1, say=say)
    line = next(line for line in said if "no run has ended" in line)
    assert line.endswith("; at work: none" + ", uniform" * (jobs - 1) + "; --run-minutes limits each of them")


@pytest.mark.parametrize("jobs", [1, 2])
def test_nothing_runs_on_when_the_race_is_interrupted(jobs, race):
    """Wherever it was: here while it says something."""
    stopped = Waits(WAITS, lambda *_: None)
    stopped.may.set()

    def say(text):
        if "seed 0" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        race(stopped, names=("none", "uniform"), jobs=jobs, say=say)
    assert stopped._stopped.is_set()


def test_a_command_without_a_seed_is_warned_of(race):
    said, names = [], ("none", "uniform")
    for seeds in (1, 2):
        race(command("print('score: 1')", "{policy}"), names=names, seeds=seeds, say=said.append)
        assert [line for line in said if "{seed}" in line] == [
            "the command has no {seed}: where its runs do not differ, more of them say nothing about chance"
        ] * (seeds - 1)
    said.clear()
    race(command("print('score: 1')"), names=names, seeds=2, say=said.append)
    assert not [line for line in said if "{seed}" in line]


def test_policies_of_another_format_are_another_training():
    keys = {Command((sys.executable, "{policy}"), lambda *_: None, target=to).key for to in ("torchvision", "timm")}
    assert len(keys) == 2


@pytest.mark.parametrize(
    "output",
    [
        "50%|##   | 1/2 [00:00]\r              \rscore: 0.25\n",  # tqdm(..., leave=False)
        "50%|##   | 1/2 [00:00<00:01, 1.0it/s]score: 0.25\n",  # a bar that nobody closed
        "\x1b[?25l\x1b[32mscore:\x1b[0m \x1b[1;36m0.25\x1b[0m\x1b[K\n",
        "train \x1b[2K\x1b[1Gscore: 0.25\x1b[?25h",
        "score: 9\r\nscore: 0.25\r\nbest score: 7\n",
    ],
)
def test_a_score_among_progress_bars(output, tmp_path):
    (tmp_path / "log.txt").write_bytes(output.encode())
    assert read_score(tmp_path, tmp_path / "log.txt") == 0.25


def test_an_edited_script_is_another_training(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('score: 1')")
    first = Command((sys.executable, str(script), "{policy}"), lambda policy, path: None)
    before = first.key
    script.write_text("print('score: 2')")
    assert first.key != before


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (("-m", "pack.train"), "pack/train.py"),
        (("-m", "pack"), "pack/__main__.py"),
        (("-c", "python pack/train.py --lr 1; true"), "pack/train.py"),
        (("train.py", "--config=pack/a.yaml"), "pack/a.yaml"),
        (("train.py", "--config", "pack/a.yaml"), "pack/a.yaml"),
    ],
)
def test_an_edited_file_among_the_words_is_another_training(words, file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pack").mkdir()
    first = Command((sys.executable, *words, "{policy}"), lambda policy, path: None)
    keys = {first.key}
    for text in ("1", "2"):
        (tmp_path / file).write_text(text)
        keys.add(first.key)
    assert len(keys) == 3


def test_scores_of_a_plain_script_are_found_again(tmp_path, monkeypatch):
    """The form of its key does not change: finished runs would be lost."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass")
    words = ["true", "train.py", "{policy}"]
    digest = hashlib.sha256(b"pass").hexdigest()
    assert Command(tuple(words), lambda policy, path: None).key == json.dumps([words, "json", [digest]])


def test_what_a_command_leaves_behind_ends_with_it(tmp_path):
    body = """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print(child.pid); print("score: 1")
    """
    command(body)(Policy.named("none"), 0, tmp_path)
    pid = int((tmp_path / "log.txt").read_text().split()[0])
    for _ in range(100):  # init reaps it when it has time
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the child is alive")


def test_a_command_may_write_its_score(tmp_path):
    body = "import json, sys; json.dump({'score': 0.25}, open(sys.argv[3] + '/score.json', 'w'))"
    assert command(body)(Policy.named("none"), 0, tmp_path) == 0.25


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("print('done')", "printed no line 'score: NUMBER'"),
        ("print('score: nan')", "its score is not finite: nan"),
        ("print('score: good')", "its score is no number: 'good'"),
        ("raise SystemExit(3)", "it ended with exit code 3; its output"),
        ("print('\\x1b[31mno\\aGPU\\x1b[0m', '\\n ' + 9 * '\\t'); exit(1)", r"exit code 1 (no\x07GPU); its output is"),
        ("raise OSError('full')", "it ended with exit code 1 (OSError: full); its output is in"),
        ("import sys; open(sys.argv[3] + '/score.json', 'w').write('[]')", 'must hold {"score": NUMBER}'),
    ],
)
def test_a_command_that_gives_no_score_is_named(body, message, tmp_path):
    with pytest.raises(RunError) as raised:
        command(body)(Policy.named("none"), 0, tmp_path)
    assert message in str(raised.value)


def test_a_command_that_hangs_is_ended(tmp_path):
    with pytest.raises(RunError, match="it took longer than 1 s"):
        command("import time; time.sleep(60)", seconds=1)(Policy.named("none"), 0, tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "needs the command that trains"),
        (("python", "train.py"), "must say where the policy goes"),
        (("python", "{policy}", "{lr}"), r"a placeholder \{lr\} that is not known; there are \{policy\}, \{seed\}"),
        (("no-such-program-here", "{policy}"), "was not found"),
    ],
)
def test_wrong_commands(words, message):
    with pytest.raises(ConfigError, match=message):
        Command(words, lambda policy, path: None)


def test_a_gpu_is_given_by_the_environment(tmp_path):
    body = "import os; print('score:', os.environ['CUDA_VISIBLE_DEVICES'])"
    assert command(body)(Policy.named("none"), 0, tmp_path, gpu="3") == 3
