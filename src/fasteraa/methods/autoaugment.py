"""AutoAugment (Cubuk et al., 2018): a recurrent controller writes policies and learns from trainings with them.

Its reward is the accuracy on held-out images, its teacher PPO. The settings are the paper's, as far as it has them; it
trained some thousand networks for each data set. What a budget does not pay for is left out from the end: with few
trainings the controller hardly learns, and the method is a random search. There are two controllers, each with the
held-out images of a fold of its own, so that what races on a fold was never rewarded there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Generator, Tensor, nn

from fasteraa.methods.black_box import FEWEST, LEAST_FOLDS, BlackBox, TimeShare, Tried, best_first, trainings_words
from fasteraa.methods.method import Published
from fasteraa.methods.space import Space, concatenated, space_of
from fasteraa.methods.task import Task
from fasteraa.policy.policy import Policy
from fasteraa.runtime.seeds import deterministic, seeded
from fasteraa.runtime.settings import Settings, setting
from fasteraa.train.job import Outcome, TrainJob
from fasteraa.train.runner import Runner, run_jobs

CONTROLLERS = LEAST_FOLDS  # on a fold each


@dataclass(frozen=True, kw_only=True)
class AutoAugmentSettings(Settings):
    """`about` of each field is its help."""

    policies: int = setting(15_000, "Policies that are trained with, at most.", least=FEWEST)
    epochs: int | None = setting(
        None, "Of each training (the paper: 120); None: what the budget pays for, as of every method.", least=1
    )
    units: int = setting(100, "Of the controller's LSTM.", least=1)
    start: float = setting(0.1, "Its weights begin uniform in minus to plus this.", above=0)
    children: int = setting(20, "Policies between two updates, at most a tenth of all.", least=1)
    learning_rate: float = setting(0.00035, "Of PPO.", above=0)
    entropy: float = setting(0.00001, "The weight of the controller's entropy.", least=0)
    baseline: float = setting(0.95, "Decay of the mean reward that rewards are compared with.", least=0, below=1)
    steps: int = setting(10, "Of PPO in an update (the paper does not say).", least=1)
    clip: float = setting(0.2, "PPO's limit on the change of a probability in an update (the same).", above=0)
    kept: int = setting(5, "Of the policies the best so many are concatenated.", least=1)


class AutoAugment(BlackBox):
    """The five best policies of all that the controllers wrote, concatenated; and the best one."""

    name = "autoaugment"
    settings_class = AutoAugmentSettings
    settings: AutoAugmentSettings

    @classmethod
    def published(cls, source: str = "cifar10") -> Published:
        """Its networks for CIFAR-10, whose learning rate falls by a cosine from the first step on."""
        train = {"learning_rate": 0.01, "weight_decay": 1e-4, "batch_size": 128, "warmup": 0.0}
        return Published({"epochs": 120}, {"network": "wrn-40-2", "epochs": 120, "train": train})

    @classmethod
    def reduced(cls) -> Self:
        return cls(AutoAugmentSettings(policies=6, units=10, steps=2))

    def most(self, task: Task) -> int:
        return self.settings.policies

    def tried(self, task: Task, planned: Mapping[str, Any], runner: Runner, share: TimeShare) -> list[Tried]:
        """In turns: the controllers write some policies, these are trained with, the controllers learn."""
        space, settings = space_of(task.config), self.settings
        assert space is not None
        count, epochs = planned["trainings"] // CONTROLLERS, planned["epochs"]  # policies of a controller
        children = max(min(settings.children, count // 10), 1)
        what = trainings_words(task, CONTROLLERS * count, epochs)
        task.say(f"autoaugment: {what}, an update of the controllers after every {CONTROLLERS * children}")
        learners = [Learner(space, settings, seed=CONTROLLERS * task.seed + fold) for fold in range(CONTROLLERS)]
        tried: list[Tried] = []
        share.begin()
        for first in range(0, count, children):
            codes = [learner.write(min(children, count - first)) for learner in learners]
            jobs = [_jobs(task, space, written, fold, first, epochs) for fold, written in enumerate(codes)]
            outcomes = run_jobs(runner, [job for each in jobs for job in each])
            for learner, written, theirs in zip(learners, codes, jobs, strict=True):
                rewards = {number: reward(outcomes.get(job.key)) for number, job in enumerate(theirs)}
                sound = {number: each for number, each in rewards.items() if each is not None}
                if sound:
                    learner.learn(written[list(sound)], list(sound.values()))
                tried += [
                    Tried(theirs[number].policy, theirs[number].split.name, -each, outcomes[theirs[number].key].seconds)
                    for number, each in sound.items()
                ]
            if tried and _is_tenth(first, children, count):
                best = 100 * max(-each.score for each in tried)
                task.say(
                    f"autoaugment: {CONTROLLERS * (first + children)} trainings, the best accuracy is {best:.1f} %"
                )
            if share.over(CONTROLLERS * min(first + children, count), CONTROLLERS * count, "trainings"):
                break
        return tried

    def best(self, tried: Sequence[Tried]) -> dict[str, Policy]:
        policies = best_first(tried)
        return {
            "autoaugment": concatenated(policies[: self.settings.kept], "autoaugment"),
            "autoaugment-best": policies[0],
        }


def _jobs(task: Task, space: Space, codes: Tensor, fold: int, first: int, epochs: int) -> list[TrainJob]:
    """A training with each policy; the networks of a fold begin alike."""
    names = [f"autoaugment-{fold}-{first + number}" for number in range(len(codes))]
    policies = [space.decode(code, name) for code, name in zip(codes.tolist(), names, strict=True)]
    return [task.job(each.name, each, fold=fold, seed=task.seed + fold, epochs=epochs) for each in policies]


def reward(outcome: Outcome | None) -> float | None:
    """The accuracy on held-out images; None for a training that failed, which says nothing about its policy.

    A zero would be fifty times as far from the baseline as the others are, and an update would be about it alone.
    """
    return None if outcome is None or outcome.failed else 1 - outcome.error / 100


def _is_tenth(first: int, children: int, count: int) -> bool:
    """Ten lines of progress, however many updates there are."""
    return 10 * first // count != 10 * (first + children) // count


class Learner:
    """A controller and what teaches it: PPO with a moving average of rewards as the baseline."""

    def __init__(self, space: Space, settings: AutoAugmentSettings, seed: int):
        self.settings, self.baseline = settings, 0.0
        self.generator = Generator().manual_seed(seed)
        with seeded(seed):
            self.controller = Controller(space.sizes, settings.units, settings.start)
        self.optimiser = torch.optim.Adam(self.controller.parameters(), settings.learning_rate)
        self.updates = 0

    def write(self, count: int) -> Tensor:
        """Codes of so many policies, (count, 30)."""
        return self.controller.write(count, self.generator)

    def learn(self, codes: Tensor, rewards: Sequence[float]) -> None:
        """Make what was better than usual likelier, but not at once."""
        rewarded, settings = torch.tensor(rewards), self.settings
        mean = float(rewarded.mean())
        self.baseline = settings.baseline * self.baseline + (1 - settings.baseline) * mean if self.updates else mean
        advantage = rewarded - self.baseline
        with deterministic(codes.device):
            before = self.controller(codes)[0].detach()
            for _ in range(settings.steps):
                now, entropy = self.controller(codes)
                ratio = (now - before).exp()
                limited = ratio.clamp(1 - settings.clip, 1 + settings.clip)
                gain = torch.minimum(ratio * advantage, limited * advantage).mean() + settings.entropy * entropy.mean()
                self.optimiser.zero_grad()
                (-gain).backward()
                self.optimiser.step()
        self.updates += 1


class Controller(nn.Module):
    """An LSTM that writes a code, one number after the other; each number has a softmax of its own."""

    def __init__(self, sizes: Sequence[int], units: int, start: float):
        super().__init__()
        self.units = units
        self.cell = nn.LSTMCell(units, units)
        self.softmaxes = nn.ModuleList(nn.Linear(units, size) for size in sizes)
        self.embeddings = nn.ModuleList(nn.Embedding(size, units) for size in sizes[:-1])
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -start, start)

    @torch.no_grad()
    def write(self, count: int, generator: Generator) -> Tensor:
        """Drawn codes (count, numbers)."""
        numbers: list[Tensor] = []
        state, x = self._begin(count)
        for place, softmax in enumerate(self.softmaxes):
            state = self.cell(x, state)
            numbers.append(softmax(state[0]).softmax(1).multinomial(1, generator=generator)[:, 0])
            x = self._next(place, numbers[-1])
        return torch.stack(numbers, 1)

    def forward(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """The logarithm of each code's probability, and the entropy on the way to it; both (count,)."""
        logarithm, entropy = torch.zeros(len(codes)), torch.zeros(len(codes))
        state, x = self._begin(len(codes))
        for place, softmax in enumerate(self.softmaxes):
            state = self.cell(x, state)
            number, logarithms = codes[:, place], softmax(state[0]).log_softmax(1)
            logarithm = logarithm + logarithms.gather(1, number[:, None])[:, 0]
            entropy = entropy - (logarithms.exp() * logarithms).sum(1)
            x = self._next(place, number)
        return logarithm, entropy

    def _begin(self, count: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        nothing = torch.zeros(count, self.units)
        return (nothing, nothing), nothing

    def _next(self, place: int, numbers: Tensor) -> Tensor:
        """What the next step sees: the number before."""
        return self.embeddings[place](numbers) if place < len(self.embeddings) else numbers
