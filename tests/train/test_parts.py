"""Trainings in parts: together they are the whole training, whoever trains them and wherever they are stopped."""

import math
import time
from dataclasses import replace

import pytest
import torch

from fasteraa.errors import ConfigError, OutOfTime, RunError
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.named import named
from fasteraa.train import live_groups, trainer
from fasteraa.train.group import Group
from fasteraa.train.job import TrainJob
from fasteraa.train.live_groups import LiveGroups
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner.local import LocalRunner, _part, train_group
from fasteraa.train.trainer import train_together
from fasteraa.train.training import TrainingPart, TrainingRun

FLIPS = Policy((SubPolicy(((Choice("flip", 0.5),),)),), "flips")


@pytest.fixture
def recipe(tiny):
    return replace(tiny, epochs=6, warmup=2, precision="float32")


def parts_of(job, ends, policies=None):
    """The job as parts that continue each other."""
    found = []
    for number, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
        policy = job.policy if policies is None else policies[number]
        after = found[-1].key if found else ""
        found.append(replace(job, label=f"part-{number}", policy=policy, epochs=(first, last), after=after))
    return found


def numbers(outcome):
    return outcome.error, outcome.loss, outcome.train_loss


@pytest.mark.parametrize(
    "settings", [{}, {"optimizer": "adamw", "learning_rate": 0.01, "ema": 0.9}, {"momentum": 0.0, "accumulate": 2}]
)
def test_parts_are_the_whole(cache, split, recipe, settings):
    """Weights, what the optimiser remembers, warm-up and cosine, order and draws go on; nothing begins again."""
    whole = TrainJob("whole", FLIPS, replace(recipe, **settings), 3, split)
    parts = parts_of(whole, (1, 4, 6))
    with LocalRunner(cache, device="cpu", jobs=1) as runner:
        ((_, expected),) = runner.run([whole])
        for job in parts:
            ((_, outcome),) = runner.run([job])
    assert numbers(outcome) == numbers(expected)
    assert outcome.record["steps"] == expected.record["steps"] // 3
    assert outcome.record["epochs"] == [4, 6]
    assert outcome.record["after"] == parts[1].key
    assert not list(cache.runs.glob("*.pt"))
    assert {file.stem for file in (cache.folder / "states").iterdir()} == {job.key for job in parts}
    cache.drop_states(job.key for job in parts)
    cache.drop_states([parts[0].key])  # it is gone already
    with LocalRunner(cache, device="cpu", jobs=1) as runner:
        assert dict(runner.run(parts))[parts[2]] == outcome  # replayed, without a state


def test_policies_as_a_schedule(cache, split, recipe):
    """Parts with policies of their own are a training with the schedule of these."""
    subs = [SubPolicy(FLIPS.sub_policies[0].stages, during=(0, 0.5)), SubPolicy(((Choice("invert", 0.5),),))]
    schedule = Policy((subs[0], replace(subs[1], during=(0.5, 1))))
    whole = TrainJob("whole", schedule, recipe, 0, split)
    policies = [schedule.at_epoch(0, 6), schedule.at_epoch(5, 6)]
    with LocalRunner(cache, device="cpu", jobs=1) as runner:
        ((_, expected),) = runner.run([whole])
        for job in parts_of(whole, (3, 6), policies):
            ((_, outcome),) = runner.run([job])
    assert numbers(outcome) == numbers(expected)


def test_a_part_that_was_stopped_continues(cache, split, recipe, monkeypatch):
    first, last = parts_of(TrainJob("whole", FLIPS, replace(recipe, epochs=40), 0, split), (2, 40))
    with LocalRunner(cache, device="cpu", jobs=1) as runner:
        list(runner.run([first]))
        stopped = list(runner.run([last], until=time.time() + 0.05))
        begun = cache.checkpoint(last).exists()
        ((_, outcome),) = runner.run([last])
        again = LocalRunner(type(cache)(cache.folder / "other").open(), device="cpu", jobs=1)
        list(again.run([first]))
        ((_, expected),) = again.run([last])
    assert (stopped, begun) == ([], True)
    assert numbers(outcome) == numbers(expected)


def test_members_of_a_group_have_states_of_their_own(tmp_path, data, held_out, recipe):
    """Several in lockstep, with other policies and seeds, cloned from one another: as each of them alone."""

    def run(name, seed, first, last, begin=None):
        part = TrainingPart(first, last, begin and tmp_path / begin, tmp_path / name)
        return TrainingRun(FLIPS if seed else named("none"), recipe, seed, part=part)

    begun = [run("a", 0, 0, 2), run("b", 1, 0, 2)]
    train_together(data, held_out, begun, device="cpu")
    both = [run("c", 0, 2, 6, "b"), run("d", 1, 2, 6, "a")]
    together = train_together(data, held_out, both, device="cpu")
    for job, found in zip(both, together, strict=True):
        (alone,) = train_together(data, held_out, [job], device="cpu")
        assert (alone.error, alone.held_out_loss, alone.train_loss) == (
            found.error, found.held_out_loss, found.train_loss,
        )  # fmt: skip
        assert all(map(torch.equal, alone.network.state_dict().values(), found.network.state_dict().values()))
    assert together[0].held_out_loss != together[1].held_out_loss
    with pytest.raises(ConfigError, match="runs trained together must have the same epochs"):
        train_together(data, held_out, [begun[0], both[0]], device="cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_members_of_a_captured_group_continue(tmp_path, data, held_out, recipe, optimizer):
    """On a GPU all steps are one graph: each member has the weights and moments of its own state; warm-up goes on."""
    recipe = replace(recipe, optimizer=optimizer, learning_rate=0.05 if optimizer == "sgd" else 0.005)
    policies = (named("none"), FLIPS)

    def runs(first, last, begin, end):
        parts = [
            TrainingPart(first, last, begin and tmp_path / f"{begin}-{k}", tmp_path / f"{end}-{k}") for k in range(2)
        ]
        return [TrainingRun(policies[k], recipe, k, part=parts[k]) for k in range(2)]

    whole = train_together(data, held_out, runs(0, 6, None, "whole"), device="cuda")
    train_together(data, held_out, runs(0, 3, None, "half"), device="cuda")
    parts = train_together(data, held_out, runs(3, 6, "half", "end"), device="cuda")
    for one, other in zip(whole, parts, strict=True):
        assert other.train_loss == pytest.approx(one.train_loss, rel=0.05, abs=0.01)
        assert other.held_out_loss == pytest.approx(one.held_out_loss, rel=0.1, abs=0.02)


def test_the_key_has_the_ancestry(split, recipe):
    whole = TrainJob("whole", FLIPS, recipe, 0, split)
    one, two = parts_of(whole, (3, 6)), parts_of(whole, (3, 6), [named("none"), FLIPS])
    keys = [whole.key, *(job.key for job in (*one, *two)), replace(whole, epochs=(0, 6)).key]
    assert len(set(keys)) == len(keys)
    assert (one[1].share, one[1].image_epochs, whole.share) == (0.5, 3 * 64, 1.0)
    assert replace(one[1], split=split).key == one[1].key


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epochs": (3, 3)}, "a part of 6 epochs must be some of them, got 3 to 3"),
        ({"epochs": (3, 7), "after": "k"}, "a part of 6 epochs must be some of them, got 3 to 7"),
        ({"epochs": (3, 6)}, "a part from epoch 3 on continues another training"),
        ({"epochs": (0, 6), "after": "k"}, "a part from epoch 0 on continues no other training"),
        ({"after": "k"}, "a whole training continues no other, got after = 'k'"),
    ],
)
def test_parts_that_cannot_be(split, recipe, change, words):
    with pytest.raises(ConfigError, match=words):
        replace(TrainJob("whole", FLIPS, recipe, 0, split), **change)


def test_states_that_are_not_there_or_of_another_training(cache, data, held_out, split, recipe):
    parts = parts_of(TrainJob("whole", FLIPS, recipe, 0, split), (2, 4, 6))
    with LocalRunner(cache, device="cpu", jobs=1) as runner:
        list(runner.run(parts[:1]))
        with pytest.raises(RunError, match=r"part-2, seed 0: the state that this part .* is not there: remove the rec"):
            list(runner.run(parts[2:]))
        cache.state(parts[0].key).rename(cache.state(parts[1].key))
        with pytest.raises(RunError, match="it ended after 2 epochs, not 4"):
            list(runner.run(parts[2:]))
    other = TrainingPart(2, 6, cache.state(parts[1].key))
    with pytest.raises(RunError, match="is of another run"):
        train_together(
            data, held_out, [TrainingRun(FLIPS, replace(recipe, network="wrn-10-1"), part=other)], device="cpu"
        )


def test_a_part_that_comes_to_nothing_leaves_no_state(cache, split, recipe):
    wild = replace(recipe, learning_rate=1e30, clip=0, warmup=0)
    job = replace(TrainJob("wild", FLIPS, wild, 0, split), epochs=(0, 2))
    with LocalRunner(cache, device="cpu", jobs=1) as runner:
        ((_, outcome),) = runner.run([job])
    assert outcome.failed
    assert not cache.state(job.key).exists()


def generations(recipe, split, count=3):
    """Two parts of each of a few trainings; in the second one all but the first continue another's state."""
    policies = [named("none"), FLIPS, named("cutout")][:count]
    whole = [TrainJob(f"{seed}", policy, recipe, seed, split) for seed, policy in enumerate(policies)]
    first = [replace(job, epochs=(0, 2)) for job in whole]
    sources = [0, 0, 1][:count]
    then = [
        replace(job, policy=FLIPS, epochs=(2, 4), after=first[source].key)
        for job, source in zip(whole, sources, strict=True)
    ]
    last = [replace(job, epochs=(4, 6), after=before.key) for job, before in zip(whole, then, strict=True)]
    return first, then, last


def run_together(cache, jobs, live):
    return [numbers(each) for each in train_group(cache, jobs, "cpu", None, None, live=live)]


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adamw", "learning_rate": 0.01, "ema": 0.9}])
def test_live_groups_train_the_same(tmp_path, split, recipe, settings, monkeypatch):
    """The next parts of a group, with its networks and its graph, are those that begin from the files."""
    parts = generations(replace(recipe, **settings), split)
    cold, warm = (RunCache(tmp_path / name).open() for name in ("cold", "warm"))
    expected = [run_together(cold, jobs, None) for jobs in parts]
    live, made = LiveGroups(), []
    monkeypatch.setattr(trainer, "Group", lambda *given: made.append(1) or Group(*given))
    assert [run_together(warm, jobs, live) for jobs in parts] == expected
    assert len(made) == 1
    assert not live._groups  # nothing continues the last part
    for job in parts[1]:
        states = [torch.load(cache.state(job.key), weights_only=True) for cache in (cold, warm)]
        assert states[0]["run"] == states[1]["run"]
        for name, tensor in states[0]["network"].items():
            assert torch.equal(tensor, states[1]["network"][name])


def test_what_a_live_group_cannot_continue_begins_from_files(tmp_path, split, recipe):
    """Another seed, other images, another moment, a state of nobody here."""
    first, then, _ = generations(recipe, split)
    cache, live = RunCache(tmp_path).open(), LiveGroups()
    run_together(cache, first, live)
    (_, group), *rest = live._groups
    runs = [TrainingRun(j.policy, j.recipe, j.seed, cache.checkpoint(j), _part(cache, j)) for j in then]
    assert not rest
    assert live_groups._sources(group, runs) == [0, 0, 1]
    others = [
        [replace(runs[0], seed=9), *runs[1:]],
        [replace(runs[0], recipe=replace(recipe, clip=1.0)), *runs[1:]],
        [replace(each, part=replace(each.part, begin=cache.state("another"))) for each in runs],
        [replace(each, part=replace(each.part, first=3)) for each in runs],
        runs[:2],
    ]
    assert [live_groups._sources(group, each) for each in others] == [None] * len(others)
    assert live.take("other images", runs) is None
    group.members[1].diverged = 2
    assert live_groups._sources(group, runs) is None
    group.members[1].diverged = None
    runs[1].checkpoint.touch()  # it was begun, and continues from there
    assert live_groups._sources(group, runs) is None


def test_a_group_that_was_stopped_is_not_continued(tmp_path, split, recipe):
    first, then, _ = generations(recipe, split)
    cache, live = RunCache(tmp_path).open(), LiveGroups()
    run_together(cache, first, live)
    moments = iter([math.inf, 0.0])  # before it begins, after its first epoch
    with pytest.raises(OutOfTime, match="after 3 of 4 epochs"):
        train_group(cache, then, "cpu", None, None, until=lambda: next(moments), live=live)
    assert not live._groups
    cold = RunCache(tmp_path / "cold").open()
    expected = [run_together(cold, jobs, None) for jobs in (first, then)][1]
    assert run_together(cache, then, live) == expected
