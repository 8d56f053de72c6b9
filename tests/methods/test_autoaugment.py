"""AutoAugment: the controller learns what is rewarded, by PPO; trainings are asked for in turns, and replayed."""

import pytest
import torch

from fasteraa.methods import Budget
from fasteraa.methods.autoaugment import AutoAugment, AutoAugmentSettings, Learner, reward
from fasteraa.methods.space import Space
from fasteraa.train.job import Outcome

from .planted import OPERATIONS, dose, scripted, summary, task_of

SPACE = Space(OPERATIONS, sub_policies=1)
EAGER = {"learning_rate": 0.01, "units": 20}  # the published rate is one for thousands of trainings


def test_the_controller_writes_codes_of_the_space():
    learner = Learner(SPACE, AutoAugmentSettings(), seed=0)
    codes = learner.write(200)
    assert codes.shape == (200, len(SPACE.sizes))
    for column, size in zip(codes.T, SPACE.sizes, strict=True):
        assert (column.min(), column.max()) == (0, size - 1)  # it begins nearly level
    with torch.no_grad():
        logarithm, entropy = learner.controller(codes)
    level = sum(torch.tensor(float(size)).log() for size in SPACE.sizes)
    assert float(-logarithm.mean()) == pytest.approx(float(level), rel=0.02)
    assert float(entropy.mean()) == pytest.approx(float(level), rel=0.02)
    assert torch.equal(codes, Learner(SPACE, AutoAugmentSettings(), seed=0).write(200))


def test_what_is_rewarded_becomes_likelier():
    """Codes that begin with the second operation have a higher accuracy."""
    learner = Learner(SPACE, AutoAugmentSettings(**EAGER), seed=0)

    def share():
        return float((learner.write(400)[:, 0] == 1).float().mean())

    before = share()
    for _ in range(20):
        codes = learner.write(20)
        learner.learn(codes, (0.5 + 0.2 * (codes[:, 0] == 1)).tolist())
    assert before < 0.35
    assert share() > 0.8


def test_the_baseline_is_a_moving_average_and_the_first_mean_to_begin_with():
    learner = Learner(SPACE, AutoAugmentSettings(baseline=0.9), seed=0)
    codes = learner.write(2)
    learner.learn(codes, [0.2, 0.4])
    assert learner.baseline == pytest.approx(0.3)
    learner.learn(codes, [0.8, 0.8])
    assert learner.baseline == pytest.approx(0.9 * 0.3 + 0.1 * 0.8)


def test_rewards():
    assert reward(Outcome(25.0, 1.0, 0.1, 1.0)) == 0.75
    assert reward(Outcome(100.0, 1.0, 0.1, 1.0)) == 0.0
    assert reward(Outcome(float("nan"), 1.0, 0.1, 1.0, "the loss was not finite")) is None
    assert reward(None) is None


def test_what_failed_is_no_part_of_an_update(tmp_path, monkeypatch):
    """A reward of 0 among others near 0.8 would be all that an update is about."""
    learned, learn = [], Learner.learn

    def noted(learner, codes, rewards):
        learned.append((len(codes), list(rewards)))
        learn(learner, codes, rewards)

    def half_diverges(job):
        number = int(job.policy.name.rsplit("-", 1)[1])
        if number % 2 or number < 2:  # of the first update all
            return {"diverged": "the loss was not finite"}
        return {"error": 20.0 + number / 10, "held_out_loss": 0.5, "train_loss": 0.1}

    monkeypatch.setattr(Learner, "learn", noted)
    method, runner = AutoAugment(AutoAugmentSettings(units=10, steps=2)), scripted(tmp_path, half_diverges)
    together, _ = method.candidates(task_of(), Budget(trainings=40), runner)
    assert len(runner.trained) == 40
    assert [count for count, _ in learned] == [1] * 18
    assert all(0.7 < each < 0.8 for _, rewards in learned for each in rewards)
    assert len(together.details["tried"]) == 18


def test_planted_truth(tmp_path):
    """Rotate helps and invert harms: so it is in what was found, more than in policies that are drawn."""
    method, runner = AutoAugment(AutoAugmentSettings(policies=400, **EAGER)), scripted(tmp_path)
    task = task_of()
    together, best = method.candidates(task, Budget(trainings=400), runner)
    assert [each.label for each in (together, best)] == ["autoaugment", "autoaugment-best"]
    assert len(runner.trained) == 400
    assert len(together.policy.sub_policies) == 25
    assert dose(together.policy, "rotate") > 3 * dose(together.policy, "invert")
    first, last = (
        [dose(job.policy, "rotate") - dose(job.policy, "invert") for job in some]
        for some in (runner.trained[:100], runner.trained[-100:])
    )
    assert sum(last) > sum(first) + 15  # later policies are better ones: it learned
    assert task.progress.lines[0] == (
        "autoaugment: 400 trainings of 4 epochs of the small network, an update of the controllers after every 40"
    )
    assert len(task.progress.lines) <= 11


def test_what_races_on_a_fold_was_rewarded_on_another(tmp_path):
    runner = scripted(tmp_path)
    together, _ = AutoAugment(AutoAugmentSettings(units=10, steps=2)).candidates(
        task_of(), Budget(trainings=20), runner
    )
    assert set(together.on_folds) == {"fold 1", "fold 2"}
    for fold, policy in together.on_folds.items():
        subs = {sub for job in runner.trained if job.split.name != fold for sub in job.policy.sub_policies}
        assert set(policy.sub_policies) <= subs


def test_killed_and_resumed(tmp_path):
    """The controllers learn again from what the cache has, and write the same."""
    method, budget = AutoAugment(AutoAugmentSettings(**EAGER, steps=2)), Budget(trainings=40)
    whole = summary(method.candidates(task_of(), budget, scripted(tmp_path / "whole")))
    with pytest.raises(BaseException, match="stopped; "):
        method.candidates(task_of(), budget, scripted(tmp_path / "killed", stop_after=23))
    rest = scripted(tmp_path / "killed")
    assert summary(method.candidates(task_of(), budget, rest)) == whole
    assert len(rest.trained) == 17
