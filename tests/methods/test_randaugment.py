"""RandAugment's grid: what is paid for, and that its best place is found."""

import pytest

from fasteraa.errors import ConfigError, Stopped
from fasteraa.methods import Budget, make_methods
from fasteraa.methods.randaugment import RandAugmentGrid, RandAugmentSettings, payable_grid, randaugment, spread
from fasteraa.policy.named import named

from .planted import scripted, summary, task_of

SETTINGS = RandAugmentSettings()


def hill(n, m):
    """A loss that is lowest at this pair; each fold has a level of its own."""

    def script(job):
        (sub,) = job.policy.sub_policies
        rotation = next(choice.magnitude for choice in sub.stages[0] if choice.op == "rotate")
        loss = int(job.split.name[-1]) + 0.1 * abs(len(sub.stages) - n) + abs(rotation - m / 30)
        return {"error": 10 * loss, "held_out_loss": loss, "train_loss": 0.1}

    return script


def test_by_name():
    (method,) = make_methods("randaugment")
    assert method.settings == RandAugmentSettings(n=(1, 2, 3), m=(3, 9, 15, 21, 27))
    for wrong in ({"n": (0,)}, {"n": ()}, {"n": (1.5,)}, {"m": (31,)}, {"m": (True,)}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be whole numbers in"):
            RandAugmentSettings(**wrong)


@pytest.mark.parametrize(
    ("pairs", "counts", "magnitudes"),
    [
        (15, (1, 2, 3), (3, 9, 15, 21, 27)),
        (100, (1, 2, 3), (3, 9, 15, 21, 27)),
        (14, (1, 2, 3), (3, 9, 21, 27)),
        (9, (1, 2, 3), (3, 15, 27)),
        (6, (1, 2, 3), (3, 27)),
        (5, (2,), (3, 9, 15, 21, 27)),
        (3, (2,), (3, 15, 27)),
        (2, (2,), (3, 27)),
        (1, (), ()),
        (0, (), ()),
    ],
)
def test_as_much_of_the_grid_as_can_be_paid_for(pairs, counts, magnitudes):
    assert payable_grid(SETTINGS, pairs) == [(n, m) for n in counts for m in magnitudes]


def test_a_grid_of_one_magnitude():
    assert payable_grid(RandAugmentSettings(m=(9,)), 2) == [(2, 9)]
    assert spread((9,), 1) == [9]


@pytest.mark.parametrize(("n", "m"), [(1, 9), (3, 27), (2, 15)])
def test_planted_truth(tmp_path, n, m):
    task, runner = task_of(ops=None), scripted(tmp_path, hill(n, m))
    best, second = RandAugmentGrid().candidates(task, Budget(trainings=45), runner)
    assert (best.label, second.label) == ("randaugment-grid", "randaugment-grid-second")
    assert best.policy.hash == named(f"randaugment-{n}-{m}").hash
    assert best.policy.name == f"randaugment-{n}-{m}"
    assert {policy.hash for policy in best.on_folds.values()} == {best.policy.hash}
    assert len(runner.trained) == 45
    what = "45 trainings of 4 epochs of the small network, 15 pairs of n and m on 3 folds"
    assert task.progress.lines[0] == f"randaugment: {what}"
    assert len(task.progress.lines) == 10


def test_what_races_on_a_fold_is_the_best_on_the_others(tmp_path):
    """On the first fold another pair is by far the best."""

    def script(job):
        return hill(3, 27)(job) if job.split.name == "fold 1" else hill(1, 9)(job)

    best, _ = RandAugmentGrid().candidates(task_of(ops=None), Budget(trainings=45), scripted(tmp_path, script))
    assert best.on_folds["fold 1"].hash == named("randaugment-1-9").hash


def test_of_chosen_operations():
    policy = randaugment(2, 9, ("rotate", "invert", "brightness"))
    assert set(policy.ops) == {"rotate", "brightness"}
    assert len(policy.sub_policies[0].stages) == 2
    assert randaugment(2, 9, ("invert", "flip")) is None
    assert randaugment(2, 9, None).hash == named("randaugment-2-9").hash


def test_killed_and_resumed(tmp_path):
    budget = Budget(trainings=18)

    def run(folder, **options):
        runner = scripted(tmp_path / folder, hill(2, 9), **options)
        return summary(RandAugmentGrid().candidates(task_of(ops=None), budget, runner)), runner.trained

    whole, everything = run("whole")
    with pytest.raises(Stopped):
        run("killed", stop_after=5)
    again, rest = run("killed")
    assert again == whole
    assert [job.key for job in rest] == [job.key for job in everything[5:]]


def test_without_time_or_operations(tmp_path):
    task = task_of(ops=None)
    assert RandAugmentGrid().candidates(task, Budget(trainings=5), scripted(tmp_path)) == []
    assert "randaugment: no policies, its share of the race must pay for 6 trainings" in task.progress.lines[0]
    assert RandAugmentGrid().candidates(task_of(ops=("invert",)), Budget(trainings=50), scripted(tmp_path)) == []
