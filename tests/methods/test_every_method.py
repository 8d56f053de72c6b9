"""One file over all methods: the checks that come with the package, and that each of them can fail."""

import time
from dataclasses import dataclass, replace
from random import Random

import pytest

from fasteraa.errors import ConfigError, Stopped
from fasteraa.methods import METHODS, Candidate, Method
from fasteraa.methods.black_box import TimeShare
from fasteraa.policy.named import named
from fasteraa.runtime.settings import Settings, setting
from fasteraa.testing.methods import check_method
from fasteraa.train.runner import run_jobs


@pytest.mark.parametrize("name", METHODS.names())
def test_every_method(name):
    method = METHODS.load(name)
    check_method(method.reduced)
    assert method().name == name


@pytest.mark.parametrize("name", METHODS.names())
def test_every_method_is_made_with_its_settings(name):
    method = METHODS.load(name)
    kind = method.settings_class
    assert method().settings == (None if kind is None else kind())
    if kind is not None:
        given = type(method.reduced().settings).make(method.reduced().settings.plain())
        assert method(given).settings == method.with_settings(given.plain()).settings == given != kind()


def test_settings_of_a_plug_in():
    @dataclass(frozen=True, kw_only=True)
    class Own(Settings):
        least: int = setting(1, "A number.", least=1)

    class Plain(Steps):
        settings_class = Own

    class Older(Steps):
        """Keeps its settings itself."""

        def __init__(self, settings=None):
            self.settings = settings or Own()

    for kind in (Plain, Older):
        assert kind().settings == Own()
        assert kind.with_settings({"least": 3}).settings.least == 3
        with pytest.raises(ConfigError, match="of the method steps, least must be a number of at least 1, got 0"):
            kind.with_settings({"least": 0})
    with pytest.raises(ConfigError, match="the method 'steps' has no settings of its own, got least"):
        Steps.with_settings({"least": 3})


# --- methods with one mistake each -----------------------------------------------------------------------------------


class RandomSearch(Method):
    """Without a mistake: some policies are drawn, and the best of them proposed."""

    name = "random"
    trains = True

    def candidates(self, task, budget, runner):
        count = task.decisions.decide(self.name, lambda: {"trainings": self.payable(task, budget, runner)})["trainings"]
        drawn = {f"random-{seed}": self.draw(task, seed) for seed in range(count)}
        jobs = [task.job(label, policy, fold=0, seed=0, epochs=2) for label, policy in drawn.items()]
        outcomes = self.train(task, budget, runner, jobs)
        sound = [job for job in jobs if job.key in outcomes and not outcomes[job.key].failed]
        return [self.made(job) for job in sorted(sound, key=lambda job: outcomes[job.key].loss)[:3]]

    def train(self, task, budget, runner, jobs):
        return TimeShare(task, self.name, budget).run(runner, jobs)

    def payable(self, task, budget, runner):
        if budget.trainings is not None:
            return budget.trainings
        return min(12, int(budget.seconds / runner.estimate([task.job("none", named("none"), fold=0, seed=0)])))

    def draw(self, task, seed):
        return named("random", seed=task.seed + seed, ops=task.config.ops)

    def made(self, job):
        return Candidate(job.label, job.policy, on_folds={job.split.name: named("none")})


def test_a_method_of_a_plug_in():
    check_method(RandomSearch, trainings=6)


class RacesWhereItTrained(RandomSearch):
    def made(self, job):
        return Candidate(job.label, job.policy)


class HasAnotherIdeaEachTime(RandomSearch):
    def draw(self, task, seed):
        return named("random", seed=Random().randrange(10**9), ops=task.config.ops)


class SpendsMore(RandomSearch):
    def payable(self, task, budget, runner):
        return super().payable(task, budget, runner) + 1


class PlansAgain(RandomSearch):
    """By a clock, which says something else the second time."""

    def candidates(self, task, budget, runner):
        task.decisions.forget()
        return super().candidates(task, budget, runner)


class HasAllTimeInTheWorld(RandomSearch):
    def train(self, task, budget, runner, jobs):
        return run_jobs(runner, jobs)


class ForgetsWhereItEnded(RandomSearch):
    """On a machine that is slower than was measured; resumed it trains some more."""

    def train(self, task, budget, runner, jobs):
        return run_jobs(runner, jobs, until=time.time() + budget.seconds)


class HasLabelsWithSpaces(RandomSearch):
    def made(self, job):
        return Candidate(f"the policy {job.label}", job.policy)


class HasOneLabel(RandomSearch):
    def made(self, job):
        return Candidate("best", job.policy)


class HasANameWithAComma(RandomSearch):
    name = "random, twice"


class IgnoresCtrlC(RandomSearch):
    def candidates(self, task, budget, runner):
        try:
            return super().candidates(task, budget, runner)
        except Stopped:
            return [Candidate("none", named("none"))]


class NeedsAFolder(RandomSearch):
    def candidates(self, task, budget, runner):
        found = super().candidates(task, budget, runner)
        return found if task.folder else found[:1]


class ForgetsTheOperations(RandomSearch):
    def draw(self, task, seed):
        return named("random", seed=task.seed + seed)


class FallsOverFailures(RandomSearch):
    def candidates(self, task, budget, runner):
        found = super().candidates(task, budget, runner)
        return found if found or not self.payable(task, budget, runner) else [found[0]]


class TrainsTwice(RandomSearch):
    """With another seed, once it was killed."""

    def candidates(self, task, budget, runner):
        if task.resume:
            runner.stop_after = None
            run_jobs(runner, [task.job("again", named("uniform"), fold=0, seed=9, epochs=2)])
        return super().candidates(task, budget, runner)


class Steps(Method):
    """Counts to ten in steps, and keeps how far it is; a policy for every step."""

    name = "steps"

    def candidates(self, task, budget, runner):
        for step in range(task.decisions.get("steps").get("done", 0), 10):
            self.keep(task, step)
            task.progress.step()
        seed = task.decisions.get("steps")["sum"]
        return [Candidate("steps", named("random", seed=seed, ops=task.config.ops))]

    def keep(self, task, step):
        total = task.decisions.get("steps").get("sum", 0)
        task.decisions.note("steps", {"done": step + 1, "sum": total + step})


def test_a_method_of_a_plug_in_without_trainings():
    check_method(Steps)


class CountsAStepTwice(Steps):
    """What was done when it was killed is done once more."""

    def keep(self, task, step):
        total = task.decisions.get("steps").get("sum", 0)
        task.decisions.note("steps", {"done": step, "sum": total + step})


class GoesOnAfterCtrlC(Steps):
    def candidates(self, task, budget, runner):
        try:
            return super().candidates(task, budget, runner)
        except KeyboardInterrupt:
            return super().candidates(replace(task, progress=type(task.progress)()), budget, runner)


class Slow(Steps):
    def candidates(self, task, budget, runner):
        assert task.until > time.time()
        return super().candidates(task, budget, runner)


class Empty(Method):
    name = "empty"

    def candidates(self, task, budget, runner):
        return []


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (RacesWhereItTrained, "'random-[0-9]' comes of trainings on fold 1, and would race there itself"),
        (HasAnotherIdeaEachTime, "the same seed and Budget.*, other candidates: "),
        (SpendsMore, "a budget of 0 trainings was spent on 1"),
        (PlansAgain, "killed after 0 of 12 trainings and run again, other candidates"),
        (HasAllTimeInTheWorld, r"its trainings took twice the 600 seconds of its budget and it made all 12: "),
        (ForgetsWhereItEnded, r"with time for [67] of 12 trainings and run again, other "),
        (HasLabelsWithSpaces, "a label is a name without spaces and commas, got 'the policy random-"),
        (HasOneLabel, "labels must differ, got best, best, best"),
        (HasANameWithAComma, "a name has no spaces and commas, .* got 'random, twice'"),
        (IgnoresCtrlC, "Ctrl-C after 0 trainings did not get through"),
        (NeedsAFolder, "other candidates without a folder: 3 and 1 of them"),
        (ForgetsTheOperations, r"has operations beside \('rotate', 'invert', 'brightness'\)"),
        (FallsOverFailures, "every training failed, and the method ended with IndexError"),
        (TrainsTwice, "killed after 0 of 6 trainings and run again, other trainings"),
        (CountsAStepTwice, "killed in step 5 of 10 and run again, other candidates"),
        (GoesOnAfterCtrlC, "Ctrl-C in step 1 did not get through"),
        (Slow, "time was up, and the method ended with AssertionError"),
        (Empty, "with Budget.* there is no candidate"),
    ],
)
def test_a_method_with_a_mistake_is_found_out(broken, words):
    with pytest.raises(AssertionError, match=words):
        check_method(broken, trainings=6)


def test_no_method_at_all():
    with pytest.raises(AssertionError, match=r"a method is a fasteraa\.methods\.Method, got a dict"):
        check_method(dict)
