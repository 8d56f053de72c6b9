"""The local runner: what is missing is trained, a failure takes no other with it, what was begun continues."""

import json
import math
import re
import threading
from dataclasses import replace

import pytest
import torch

from fasteraa.comparison.contenders import jobs_of, parse_contenders
from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, OutOfTime, RunError, Stopped
from fasteraa.policy.named import named
from fasteraa.runtime import device
from fasteraa.runtime.processes import core_count
from fasteraa.train import runner as runners
from fasteraa.train.group import Group
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner import RUNNERS, Engine, local, make_runner, run_jobs
from fasteraa.train.runner.local import LocalRunner, fastest
from fasteraa.train.split import Split, fold_splits
from fasteraa.train.trainer import Diverged, Trained
from fasteraa.train.training import Training, epochs_done


def jobs_for(split, recipe, policies="none,uniform", seeds=2):
    return jobs_of(parse_contenders(policies, seeds), recipe, range(seeds), split)


@pytest.fixture
def runner(cache):
    return LocalRunner(cache, device="cpu", jobs=1)


def noted(calls):
    """Stands in for training: notes what it was asked for, and says a number that depends on it."""

    def train_together(data, held_out, runs, **options):
        return [trained(run.policy, run.recipe, run.seed) for run in runs]

    def trained(policy, recipe, seed):
        calls.append((policy.name, seed, recipe.cutout))
        error = 20.0 + seed + (5.0 if policy.name == "none" else 0.0) + (0.5 if seed == 1 else 0.0)
        return Trained(
            error, 0.0, 0.5, error, 0.5, 0.1, 1.0, 0.0, 1, 1.0, "plain", 4, None, None, {"device": "a device"}
        )

    return train_together


@pytest.fixture
def calls(monkeypatch):
    asked = []
    monkeypatch.setattr(local, "train_together", noted(asked))
    return asked


def test_runners_are_made_by_name(cache):
    assert make_runner("local", cache, device="cpu", jobs=3).jobs == 3
    with pytest.raises(ConfigError, match="unknown runner 'locl': did you mean 'local'"):
        make_runner("locl", cache)
    assert "local" in RUNNERS.names()
    for jobs in (0, -1):
        with pytest.raises(ConfigError, match=f"jobs must be at least 1, got {jobs}"):
            LocalRunner(cache, jobs=jobs)
    with pytest.raises(ConfigError, match="unknown device 'gpu'"):
        LocalRunner(cache, device="gpu")


# --- nothing is run twice --------------------------------------------------------------------------------------------


def test_jobs_are_not_run_twice(runner, split, quick, calls):
    said = []
    first = run_jobs(runner, jobs_for(split, quick), said.append)
    assert len(calls) == 4
    assert sorted(outcome.error for outcome in first.values()) == [20.0, 21.5, 25.0, 26.5]
    more = run_jobs(runner, jobs_for(split, quick, seeds=3), said.append)
    assert calls[4:] == [("none", 2, 0), ("uniform", 2, 0)]
    assert "4 of 6 runs are there already" in said
    assert {key: more[key] for key in first} == first


def test_a_job_under_another_label_is_the_same_job(runner, split, quick, calls):
    run_jobs(runner, jobs_for(split, quick, "uniform", 1))
    run_jobs(runner, jobs_for(split, quick, "other=uniform", 1))
    assert len(calls) == 1
    said = []
    run_jobs(runner, jobs_for(split, quick, "none,same=none", 1), said.append)
    assert len(calls) == 2
    assert said == ["1/1 none, seed 0: 25.00% (1 s)"]


def test_a_run_that_was_begun_under_another_label_continues(runner, split, quick, monkeypatch):
    (begun,), (again,) = (jobs_for(split, replace(quick, epochs=2), name, 1) for name in ("uniform", "other=uniform"))
    moments = iter([math.inf, 0.0])  # time is up after the first epoch
    with pytest.raises(OutOfTime):
        runner.train_group([begun], until=lambda: next(moments))
    assert len(list(runner.cache.runs.glob("uniform-0-*.pt"))) == 1
    epochs, plain = [], Group.one_epoch
    monkeypatch.setattr(Group, "one_epoch", lambda group: epochs.append(group.epoch) or plain(group))
    run_jobs(runner, [again])
    assert epochs == [1]  # counted from 0
    (file,) = runner.cache.runs.iterdir()
    assert file.name.endswith(f"-0-{begun.key}.json")


def test_a_damaged_record_is_named_before_anything_is_run(runner, split, quick, calls):
    run_jobs(runner, jobs_for(split, quick, "uniform", 1))
    (file,) = runner.cache.runs.glob("*.json")
    file.write_text("{")
    with pytest.raises(RunError, match=r"uniform-0-.*cannot be read.*remove it to run it again"):
        run_jobs(runner, jobs_for(split, quick, "none,uniform", 1))
    assert len(calls) == 1


def test_the_record_holds_what_was_run(cache, split, quick):
    (job,) = jobs_for(split, quick, "uniform", 1)
    run_jobs(LocalRunner(cache, device="cpu", jobs=1, command="fasteraa compare"), [job])
    record = cache.read(job).record
    assert (record["label"], record["recipe"]["epochs"], record["steps"]) == ("uniform", 1, 4)
    assert record["policy"]["hash"] == named("uniform").hash
    assert record["data"]["fingerprint"] == split.train.fingerprint
    assert record["held_out"]["fingerprint"] == split.held_out.fingerprint
    assert record["command"] == "fasteraa compare"
    assert not list(cache.runs.glob("*.pt"))


# --- failures, Ctrl-C, time ------------------------------------------------------------------------------------------


WHY = "the training loss was not finite in epoch 1"


def test_a_run_that_fails_is_kept_as_such_and_ends_no_other(runner, split, quick):
    recipe, said = replace(quick, learning_rate=1e30, clip=0), []
    mixed = [*jobs_for(split, recipe, "uniform", 1), *jobs_for(split, quick, "none", 1)]
    outcomes = run_jobs(runner, mixed, said.append)
    assert said[0] == f"1/2 uniform, seed 0: {WHY} (0 s)"
    assert said[1].startswith("2/2 none, seed 0: ")
    assert outcomes[mixed[0].key].failed == runner.cache.read(mixed[0]).failed == WHY
    assert outcomes[mixed[1].key].error >= 0
    run_jobs(runner, mixed, said.append)
    assert said[2:] == ["2 of 2 runs are there already"]


def test_side_by_side_a_run_that_fails_takes_no_other_with_it(runner, split, quick):
    """As branches of one graph on a GPU: a group is trained in lockstep."""
    wild, sound = (TrainJob("a", named("none"), recipe, 0, split) for recipe in (replace(quick, clip=0), quick))
    wild = replace(wild, recipe=replace(wild.recipe, learning_rate=1e30))
    lost, kept = runner.train_group([wild, sound])
    assert (lost.failed, kept.failed) == (WHY, None)
    assert kept.record["together"] == 2
    assert runner.cache.read(wild).failed == WHY


@pytest.mark.parametrize(("network", "count"), [("small", 1), ("wrn-16-1", 3)])
def test_a_small_network_trains_on_one_core(runner, split, quick, network, count, monkeypatch):
    """On cores that others use, two threads took five times the time of one; idle ones gained a fifth."""
    threads = []
    monkeypatch.setattr(
        local, "train_together", lambda *a, **k: threads.append(torch.get_num_threads()) or noted([])(*a, **k)
    )
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        runner.train_group(jobs_for(split, replace(quick, network=network), "none", 1))
        assert (threads, torch.get_num_threads()) == ([count], 3)
    finally:
        torch.set_num_threads(before)


def test_ctrl_c_keeps_finished_runs_and_says_how_to_continue(runner, split, quick, calls, monkeypatch):
    train = local.train_together

    def interrupted(*arguments, **options):
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(*arguments, **options)

    monkeypatch.setattr(local, "train_together", interrupted)
    with pytest.raises(Stopped, match=r"2 of 4 runs were finished and are kept .*same command again") as caught:
        run_jobs(runner, jobs_for(split, quick))
    assert caught.value.exit_code == 130
    assert len(list(runner.cache.runs.glob("*.json"))) == 2


def test_the_number_of_the_signal_is_told(runner, split, quick, monkeypatch):
    def terminated(*arguments, **options):
        raise KeyboardInterrupt(15)

    monkeypatch.setattr(local, "train_together", terminated)
    with pytest.raises(Stopped, match="0 of 4 runs were finished") as caught:
        run_jobs(runner, jobs_for(split, quick))
    assert caught.value.exit_code == 143


def test_a_time_limit_leaves_runs_for_later(runner, split, quick, calls):
    said = []
    assert run_jobs(runner, jobs_for(split, quick), said.append, until=0.0) == {}
    assert calls == []
    assert said == ["time is up: 4 of 4 runs are missing; give the same command again to continue"]
    assert len(run_jobs(runner, jobs_for(split, quick), said.append)) == 4


def test_a_time_limit_in_the_middle_of_a_training_keeps_its_state(runner, split, quick):
    (job,) = jobs_for(split, replace(quick, epochs=3), "none", 1)
    moments = iter([math.inf, 0.0])
    with pytest.raises(OutOfTime):
        runner.train_group([job], until=lambda: next(moments))
    assert epochs_done(runner.cache.checkpoint(job)) == 1
    continued = run_jobs(runner, [job])[job.key]
    whole = LocalRunner(RunCache(runner.cache.folder / "whole").open(), device="cpu", jobs=1)
    assert continued.train_loss == run_jobs(whole, [job])[job.key].train_loss


# --- several at once -------------------------------------------------------------------------------------------------


def losses(cache):
    return {file.name: json.loads(file.read_text())["train_loss"] for file in cache.runs.glob("*.json")}


@pytest.mark.slow
def test_processes_are_started_once_for_several_splits_and_give_the_same_numbers(cache, data, quick, monkeypatch):
    started, start = [], local.Workers
    monkeypatch.setattr(local, "Workers", lambda *given: started.append(given) or start(*given))
    alone = RunCache(cache.folder / "alone").open()
    folds = fold_splits(data, 3, 0)
    recipe = replace(quick, epochs=2, flip=True)
    jobs = [job for fold in folds for job in jobs_for(fold, recipe, seeds=1)]
    said = []
    run_jobs(LocalRunner(alone, device="cpu", jobs=1), jobs)
    with LocalRunner(cache, device="cpu", jobs=2) as runner:
        runner.prepare(folds)
        run_jobs(runner, jobs[:2], said.append)
        run_jobs(runner, jobs[2:3], said.append)  # one alone, in the processes that are there
        run_jobs(runner, jobs, said.append)
    assert len(started) == 1
    assert losses(alone) == losses(cache)
    assert len([line for line in said if ", seed 0: " in line]) == 6


def on_a_gpu(monkeypatch, free, cache, jobs=None):
    """As if there were one: which jobs are trained together."""
    groups = []

    def train_together(data, held_out, runs, **options):
        groups.append([(run.policy.name, run.seed) for run in runs])
        return noted([])(data, held_out, runs)

    monkeypatch.setattr(local, "find_devices", lambda *names: [torch.device("cuda", 0)])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 2 * free))
    monkeypatch.setattr(local, "train_together", train_together)
    return groups, LocalRunner(cache, jobs=jobs)


@pytest.mark.parametrize(
    ("free", "batch_size", "sizes"),
    [
        (2**40, 2048, [8, 2]),  # of 8 x 8 pixels: as large as 128 of 32 x 32
        (2**40, 2049, [4, 4, 2]),
        (2**40, 25_088, [4, 4, 2]),  # as large as 32 of 224 x 224
        (2**40, 25_089, [1] * 10),
        (7 * 2**30, 128, [2] * 5),
        (2**20, 128, [1] * 10),
    ],
)
def test_how_many_small_runs_share_a_gpu(cache, split, quick, monkeypatch, free, batch_size, sizes):
    groups, runner = on_a_gpu(monkeypatch, free, cache)
    run_jobs(runner, jobs_for(split, replace(quick, batch_size=batch_size), seeds=5))
    assert [len(group) for group in groups] == sizes


def test_a_damaged_checkpoint_ends_it_after_the_others(cache, split, quick, monkeypatch):
    groups, runner = on_a_gpu(monkeypatch, 2**40, cache)
    first, *others = jobs_for(split, quick, "none", 3)
    cache.checkpoint(first).write_text("no checkpoint")
    run_jobs(runner, [first, *others])
    assert groups == [[("none", 1), ("none", 2)], [("none", 0)]]
    cache.checkpoint(first).write_text("no checkpoint")
    with pytest.raises(RunError, match=r"is damaged \(it is too short\): remove it to start again"):
        epochs_done(cache.checkpoint(first))


def test_what_shares_a_gpu_is_alike(cache, split, quick, monkeypatch):
    groups, runner = on_a_gpu(monkeypatch, 2**40, cache, jobs=2)
    longer = jobs_for(split, replace(quick, epochs=7), "uniform", 3)
    mixed = [job for pair in zip(jobs_for(split, quick, "none", 3), longer, strict=True) for job in pair]
    assert len(run_jobs(runner, mixed)) == 6
    assert groups == [[("none", 0), ("none", 1)], [("none", 2)], [("uniform", 0), ("uniform", 1)], [("uniform", 2)]]


def test_runs_on_other_images_do_not_share_a_graph(cache, data, held_out, split, quick, monkeypatch):
    groups, runner = on_a_gpu(monkeypatch, 2**40, cache)
    other = Split(held_out, data, "the other way round")
    run_jobs(runner, [*jobs_for(split, quick, "none", 1), *jobs_for(other, quick, "none", 2)])
    assert groups == [[("none", 0)], [("none", 0), ("none", 1)]]


def test_what_was_begun_continues_with_what_stands_at_the_same_epoch(cache, split, quick, monkeypatch):
    """A policy that is new in the table, or another number of jobs, must not cost what was trained before."""
    groups, runner = on_a_gpu(monkeypatch, 2**40, cache)
    jobs = jobs_for(split, replace(quick, epochs=7), seeds=2)
    for job, epoch in zip(jobs, (3, 0, 5, 3), strict=True):
        if epoch:
            Training(split.train, job.policy, job.recipe, job.seed, torch.device("cpu")).save(
                cache.checkpoint(job), epoch, 1.0
            )
    assert len(run_jobs(runner, jobs)) == 4
    assert groups == [[("none", 0), ("uniform", 1)], [("uniform", 0)], [("none", 1)]]


def test_whether_kernels_are_compiled_is_for_the_caller_to_say(cache, split, quick, monkeypatch):
    seen = []

    def train_together(data, held_out, runs, *, fuse, **options):
        seen.append(fuse)
        return noted([])(data, held_out, runs)

    monkeypatch.setattr(local, "train_together", train_together)
    for number, choice in enumerate((None, False, True)):
        runner = LocalRunner(cache, device="cpu", jobs=1, compile=choice)
        run_jobs(runner, [replace(jobs_for(split, quick, "none", 1)[0], seed=number)])
    assert seen == [None, False, True]


# --- what it costs ---------------------------------------------------------------------------------------------------


def test_the_cost_of_an_image_is_measured_on_a_part_and_once(runner, data, held_out, tiny, monkeypatch):
    seen, plain = [], local.Training
    monkeypatch.setattr(local, "Training", lambda images, *given: seen.append(len(images)) or plain(images, *given))
    monkeypatch.setattr(local, "_MEASURED_S", 0.0)
    monkeypatch.setattr(local, "_MEASURED_IMAGES", 32)
    jobs = jobs_for(Split(data, held_out, "test images"), tiny, seeds=3)
    whole = runner.estimate(jobs)
    assert whole > 0
    assert seen == [32, 32]  # two of six, one after the other
    assert runner.estimate(jobs[:3]) == pytest.approx(whole / 2)
    longer = [replace(job, recipe=replace(tiny, epochs=30)) for job in jobs]
    assert runner.estimate(longer) == pytest.approx(10 * whole)
    assert len(seen) == 2
    runner.estimate([replace(job, recipe=replace(tiny, batch_size=8)) for job in jobs])
    assert len(seen) == 4  # another kind of training


def test_processes_side_by_side_take_less(cache, split, tiny, monkeypatch):
    monkeypatch.setattr(local, "fastest", lambda epoch: 1.0)
    monkeypatch.setattr(local, "Training", lambda *given: None)

    class Still:
        def capture(self): ...
        def one_epoch(self): ...

    monkeypatch.setattr(local, "Group", lambda members, fuse: Still())
    jobs = jobs_for(split, tiny)
    alone, four = (LocalRunner(cache, device="cpu", jobs=count).estimate(jobs) for count in (1, 4))
    assert alone == pytest.approx(4 * 3 * 1.0 / 2)  # two trainings were measured in that second
    assert four == pytest.approx(alone / 4)


def test_what_trainings_really_took_is_what_the_next_are_estimated_by(runner, split, tiny, monkeypatch):
    now = [0.0]

    def train_together(data, held_out, runs, **options):
        now[0] += 6.0 * len(runs)
        return noted([])(data, held_out, runs)

    monkeypatch.setattr(local, "train_together", train_together)
    monkeypatch.setattr(local.time, "monotonic", lambda: now[0])
    jobs = jobs_for(split, tiny, seeds=2)
    run_jobs(runner, jobs)
    assert runner.estimate(jobs) == pytest.approx(4 * 6.0)
    longer = replace(jobs[0], recipe=replace(tiny, epochs=6))
    assert runner.estimate([longer]) == pytest.approx(12.0)
    run_jobs(runner, jobs)  # nothing was trained: nothing is learned from it
    assert runner.estimate(jobs) == pytest.approx(4 * 6.0)


def test_of_several_short_epochs_the_fastest_counts(monkeypatch):
    """Epochs of 0.4, 0.1 and 0.2 s on a clock of their own; a fourth would begin after the half second."""
    monkeypatch.setattr(local, "_MEASURED_S", 0.55)
    now, lengths = [0.0], iter((0.4, 0.1, 0.2, 0.01))
    monkeypatch.setattr(local.time, "monotonic", lambda: now[0])
    assert fastest(lambda: now.__setitem__(0, now[0] + next(lengths))) == pytest.approx(0.1)
    assert next(lengths) == 0.01


def test_a_failed_run_tells_whose_it_was(runner, split, quick):
    """A damaged checkpoint of one of the runs: its label and seed are in the message."""
    job = jobs_for(split, quick, "uniform", 1)[0]
    runner.cache.checkpoint(job).write_text("no checkpoint")
    with pytest.raises(RunError, match=r"^uniform, seed 0: the checkpoint .* is damaged"):
        run_jobs(runner, [job])


def test_runs_that_diverged_are_records(runner, split, quick, monkeypatch):
    monkeypatch.setattr(local, "train_together", lambda *given, **options: [Diverged(WHY, 3.0, 2, {"device": "x"})])
    (job,) = jobs_for(split, quick, "none", 1)
    outcome = run_jobs(runner, [job])[job.key]
    assert (outcome.failed, outcome.seconds) == (WHY, 1.5)  # its share of what two took
    assert outcome.record["device"] == "x"


def test_images_of_one_split_are_those_of_its_jobs(runner, data, held_out, quick):
    """Two splits with the same training images and other held-out ones are two trainings."""
    mirrored = ImageSet.of(held_out.images.flip(3).contiguous(), held_out.labels, held_out.classes, "mirrored")
    recipe = replace(quick, epochs=5)
    splits = [Split(data, images, "test images") for images in (held_out, mirrored)]
    outcomes = run_jobs(runner, [job for each in splits for job in jobs_for(each, recipe, "none", 1)])
    assert sorted(outcome.error for outcome in outcomes.values()) == [0.0, 100.0]


# --- several devices -------------------------------------------------------------------------------------------------


class Pool:
    """Stands in for the processes: which device each would have, and the groups that they are given."""

    def __init__(self, work, splits, devices, threads):
        self.work, self.splits, self.devices, self.threads, self.groups = work, splits, devices, threads, []

    def __enter__(self):
        return self

    def __exit__(self, *error): ...

    def holds(self, job):
        return any(each is job.split for each in self.splits)

    def ready(self): ...

    def results(self, groups, until):
        for number, group in enumerate(groups):
            self.groups.append([job.seed for job in group])
            yield from zip(
                group, self.work(self.devices[number % len(self.devices)], group, lambda: until), strict=True
            )


def on_gpus(monkeypatch, cache, count, **options):
    pools, used = [], []

    def train_together(data, held_out, runs, *, device, **more):
        used.append(device)
        return noted([])(data, held_out, runs)

    monkeypatch.setattr(local, "find_devices", lambda *names: [torch.device("cuda", number) for number in range(count)])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**40, 2**41))
    monkeypatch.setattr(local, "train_together", train_together)
    monkeypatch.setattr(local, "Workers", lambda *given: pools.append(Pool(*given)) or pools[-1])
    return pools, used, LocalRunner(cache, **options)


@pytest.mark.parametrize(
    ("gpus", "jobs", "sizes"),
    [(2, 10, [5, 5]), (4, 10, [3, 3, 3, 1]), (2, 40, [8] * 5), (8, 3, [1, 1, 1])],
)
def test_every_gpu_has_trainings(cache, split, quick, monkeypatch, gpus, jobs, sizes):
    pools, used, runner = on_gpus(monkeypatch, cache, gpus)
    with runner:
        run_jobs(runner, jobs_for(split, quick, "none", seeds=jobs))
    (pool,) = pools
    assert pool.devices == [f"cuda:{number}" for number in range(gpus)]
    assert [len(group) for group in pool.groups] == sizes
    assert set(used) == set(pool.devices[: len(sizes)])


def test_with_one_gpu_or_one_training_there_is_no_other_process(cache, split, quick, monkeypatch):
    pools, used, runner = on_gpus(monkeypatch, cache, 1)
    run_jobs(runner, jobs_for(split, quick, "none", seeds=10))
    assert (pools, used) == ([], ["cuda:0", "cuda:0"])
    pools, used, runner = on_gpus(monkeypatch, RunCache(cache.folder / "other").open(), 2)
    run_jobs(runner, jobs_for(split, quick, "none", seeds=1))
    assert (pools, used) == ([], ["cuda:0"])


def test_several_devices_take_a_part_of_the_time(cache, split, tiny, monkeypatch):
    monkeypatch.setattr(local, "fastest", lambda epoch: 1.0)
    jobs = jobs_for(split, tiny)
    one, two = (LocalRunner(cache, devices=names).estimate(jobs) for names in ("cpu", "cpu,cpu"))
    assert two == pytest.approx(one * min(len(jobs), core_count()) / 2)


def test_cores_that_belong_to_others_are_not_counted(cache, split, tiny, monkeypatch):
    """Of a container, or under taskset, not every core of the machine is ours."""
    monkeypatch.setattr(local, "core_count", lambda: 3)
    assert LocalRunner(cache, device="cpu")._at_once(jobs_for(split, tiny, seeds=10)) == 3


def test_names_of_devices(cache, monkeypatch):
    for names, words in (("0,1", "no CUDA device"), ("gpu", "unknown device"), ("", "such as 0,1; got ''")):
        with pytest.raises(ConfigError, match=words):
            LocalRunner(cache, devices=names)
    for names in (",", "cpu,"):
        with pytest.raises(ConfigError, match=f"--devices takes names with commas between, such as 0,1; got '{names}'"):
            LocalRunner(cache, devices=names)
    monkeypatch.setattr(device, "find_device", torch.device)  # as if there were GPUs
    assert [str(each) for each in device.find_devices("auto", "0, 1")] == ["cuda:0", "cuda:1"]
    for names in ("0,0", "1,cuda:1", "cuda,0"):
        with pytest.raises(ConfigError, match=f"--devices {names} names a GPU twice"):
            LocalRunner(cache, devices=names)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="--devices cpu,cpu and --device cpu name devices twice"):
        LocalRunner(cache, device="cpu", devices="cpu,cpu")
    with pytest.raises(ConfigError, match="--devices is for --engine local, got --engine ray"):
        Engine(name="ray", devices="0")


@pytest.mark.slow
def test_two_devices_give_the_numbers_of_one(cache, data, quick):
    alone = RunCache(cache.folder / "alone").open()
    jobs = [job for fold in fold_splits(data, 2, 0) for job in jobs_for(fold, replace(quick, epochs=2), seeds=1)]
    run_jobs(LocalRunner(alone, device="cpu", jobs=1), jobs)
    with LocalRunner(cache, devices="cpu,cpu") as runner:
        run_jobs(runner, jobs)
    assert losses(alone) == losses(cache)


class Slow:
    """A runner of jobs that last until something was said of them."""

    def __init__(self, cache, heard):
        self.cache, self.heard = cache, heard

    def estimate(self, jobs):
        return 61.0 * len(jobs)

    def run(self, jobs, until=math.inf):
        for job in jobs:
            assert self.heard.wait(60)
            yield job, Outcome(12.5, 0.5, 0.5, 1.0)


def test_long_work_says_how_long_it_takes_and_that_it_goes_on(cache, split, quick, monkeypatch):
    monkeypatch.setattr(runners, "_EVERY_S", 0.01)
    monkeypatch.setattr(runners, "_LINES", 10**6)
    lines, heard = [], threading.Event()

    def say(text):
        lines.append(text)
        if "runs are finished" in text:
            heard.set()

    jobs = jobs_for(split, quick, "none", 2)
    assert len(run_jobs(Slow(cache, heard), jobs, say, estimate=True)) == 2
    assert lines[0] == "2 trainings, about 2 min 2 s"
    assert re.match(r"0 of 2 runs are finished, .* of about 2 min 2 s", lines[1])
    quiet = []
    run_jobs(Slow(cache, heard), jobs, quiet.append)
    assert [line.split()[0] for line in quiet] == ["1/2", "2/2"]
