"""Fast AutoAugment (Lim et al., 2019): policies whose images a network that was trained without them still recognises.

A network is trained on each fold without a policy. Then TPE looks for policies with which it still recognises the
fold's held-out images: one of five augmented passes must be right. The ten best policies of every fold are
concatenated. No network is trained with a policy, so a trial costs an inference: on a GPU milliseconds, far less than
TPE takes to suggest a policy. So TPE has a process for each fold, and the folds take turns on the device.

The folds are those of the race, so what races on a fold is made of the trials on the others. The paper has five splits
with 40 % held out each, draws probability and magnitude from an interval (here: 11 and 10 steps), and takes TPE from
hyperopt (here: Optuna).
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Generator

from fasteraa.errors import ConfigError, RunError, reason
from fasteraa.methods.black_box import BlackBox, TimeShare, Tried, epoch_seconds, lengths, plan
from fasteraa.methods.method import Budget, Published
from fasteraa.methods.space import Code, Space, concatenated, space_of
from fasteraa.methods.task import Task
from fasteraa.methods.tpe import Suggester, ready, suggesters
from fasteraa.policy.named import named
from fasteraa.policy.policy import Policy
from fasteraa.runtime.device import find_device
from fasteraa.runtime.documents import MOST_BYTES, parse_json, read_bytes
from fasteraa.runtime.files import append_line, sealed, unsealed, write_atomic
from fasteraa.runtime.processes import core_count
from fasteraa.runtime.settings import Settings, setting
from fasteraa.train.device_batches import DeviceFeed
from fasteraa.train.guess import Guess, load_guess
from fasteraa.train.job import TrainJob
from fasteraa.train.recipe import PAPER, epochs_words
from fasteraa.train.runner import Runner, Say

_NETWORKS_SHARE = 0.5  # of the budget, at most
_STEP_COST = 3  # forward and backward, in forward passes
_LINE_EVERY = 50  # trials, of progress
_FEW = 20  # trials of a fold, for which processes that suggest are not worth starting
_RECIPES = {"svhn": "svhn/wrn-40-2", "imagenet": "imagenet/resnet-50"}  # of what was published; of others CIFAR's
_TRAINED = ("learning_rate", "weight_decay", "batch_size", "warmup", "clip", "cutout", "crop_kind")
_AT_ONCE = {"cuda": 2**27, "cpu": 2**22}  # values that are augmented at once


@dataclass(frozen=True, kw_only=True)
class FastAASettings(Settings):
    """`about` of each field is its help."""

    trials: int = setting(200, "Policies that are tried on each fold, at most.", least=1)
    epochs: int | None = setting(
        None,
        "Of each network's training (the paper: 200); None: what the budget pays for, as of every method.",
        least=1,
    )
    passes: int = setting(5, "An image is recognised if it is in one of so many augmented passes.", least=1)
    kept: int = setting(10, "The best so many policies of each fold are concatenated.", least=1)
    sample_pairing: bool = setting(True, "Among the operations (the paper: not), unless --ops names them.")


class FastAA(BlackBox):
    """The best policies of all folds, concatenated: ten of each, and one of each."""

    name = "fast-aa"
    settings_class = FastAASettings
    settings: FastAASettings

    def __init__(self, settings: FastAASettings | None = None):
        if find_spec("optuna") is None:
            raise ConfigError("the method fast-aa needs Optuna: pip install 'fasteraa[fast-aa]'")
        super().__init__(settings)

    @classmethod
    def published(cls, source: str = "cifar10") -> Published:
        """Its networks: WRN-40-2, trained with cutout; on ImageNet ResNet-50, without."""
        recipe = PAPER[_RECIPES.get(source, "cifar/wrn-40-2")]
        train = {name: getattr(recipe, name) for name in _TRAINED}
        return Published(
            {"epochs": recipe.epochs, "sample_pairing": False},
            {"network": recipe.network, "epochs": recipe.epochs, "train": train},
        )

    @classmethod
    def reduced(cls) -> Self:
        return cls(FastAASettings(trials=12, passes=2, kept=2))

    def most(self, task: Task) -> int:
        return len(task.folds)  # a network each

    def fewest(self, task: Task) -> int:
        return len(task.folds) + 1  # some trials must be paid for, too

    def payable(self, task: Task, budget: Budget, runner: Runner) -> dict[str, Any]:
        return payable_trials(task, budget, runner, self.settings)

    def jobs(self, task: Task, planned: Mapping[str, Any]) -> list[TrainJob]:
        """A network on each fold, trained without a policy."""
        jobs = [
            task.job("none", named("none"), fold=fold, seed=task.seed + fold, epochs=planned["epochs"])
            for fold in range(len(task.folds))
        ]
        return [replace(job, keep_network=True) for job in jobs]

    def tried(self, task: Task, planned: Mapping[str, Any], runner: Runner, share: TimeShare) -> list[Tried]:
        """By trials with these networks, not by trainings."""
        jobs, space = self.jobs(task, planned), space_of(task.config, self.settings.sample_pairing)
        assert space is not None
        what = f"{len(jobs)} networks of {epochs_words(planned['epochs'])} of {task.recipe.network_words}"
        task.say(f"fast-aa: {what}, then up to {planned['trials']} trials with each")
        apart, began = planned["trials"] > _FEW and core_count() > 1, time.monotonic()
        with suggesters(space.names, space.sizes, len(jobs), apart) as tpe:  # they start while the networks train
            outcomes = share.run(runner, jobs)
            trained = [job for job in jobs if job.key in outcomes and not outcomes[job.key].failed]
            taken = max(time.monotonic() - began, sum(each.seconds for each in outcomes.values()))
            limit = self._left(task, planned, taken)
            pairs = zip(trained, tpe, strict=False)
            folds = [self._trials_of(task, job, space, planned["trials"], limit, runner, each) for job, each in pairs]
            try_all(folds, task.say)
        return [
            Tried(space.decode(each.code), fold.name, each.error, each.seconds)
            for fold in folds
            for each in fold.trials
        ]

    def _left(self, task: Task, planned: Mapping[str, Any], taken: float) -> float:
        """Seconds for the trials, after what the networks really took."""
        if "seconds" not in planned:
            return math.inf
        left = max(planned["seconds"] - taken, 0.0)
        return float(plan(task, f"{self.name}/trials", self.settings, lambda: {"seconds": left})["seconds"])

    def _trials_of(
        self, task: Task, job: TrainJob, space: Space, count: int, seconds: float, runner: Runner, tpe: Suggester
    ) -> FoldTrials:
        scorer = Scorer(job, runner.cache.network(job), self.settings.passes, find_device(task.device))
        journal = Journal.of(task.folder_of(self.name), job, space, self.settings)
        return FoldTrials(space, scorer, journal, count, seconds, job.seed, tpe)

    def best(self, tried: Sequence[Tried]) -> dict[str, Policy]:
        counts = {"fast-aa": self.settings.kept, "fast-aa-best": 1}
        return {label: concatenated(best_of_folds(tried, count), label) for label, count in counts.items()}


def best_of_folds(tried: Sequence[Tried], count: int) -> list[Policy]:
    """The best so many of each fold."""
    folds = dict.fromkeys(each.fold for each in tried)
    ranked = sorted(tried, key=lambda each: each.score)
    return [each.policy for fold in folds for each in [each for each in ranked if each.fold == fold][:count]]


# --- the networks ----------------------------------------------------------------------------------------------------


def payable_trials(task: Task, budget: Budget, runner: Runner, settings: FastAASettings) -> dict[str, Any]:
    """Networks first, of at least the shortest informative length; what is left pays for trials.

    Where trainings are counted, a trial counts as much as its forward passes.
    """
    folds, (least, longest) = len(task.folds), lengths(task, settings.epochs)
    if budget.trainings is not None:
        of_training = _STEP_COST * longest * task.train_images / (settings.passes * len(task.folds[0].held_out))
        trials = min(settings.trials, math.floor(max(budget.trainings - folds, 0) * of_training / folds))
        cost = folds + math.ceil(folds * trials / of_training) if trials else 0
        return {"trainings": cost, "epochs": longest, "trials": trials}
    began = time.monotonic()
    epoch = epoch_seconds(task, runner)
    epochs = math.floor(min(longest, _NETWORKS_SHARE * budget.seconds / (folds * epoch)))
    if epochs < least:
        return {"trainings": 0, "epochs": least, "trials": 0}
    limit = {} if budget.seconds == math.inf else {"seconds": budget.seconds - (time.monotonic() - began)}
    return {"trainings": folds, "epochs": epochs, "trials": settings.trials, **limit}


class Scorer:
    """How many of a fold's held-out images its network does not recognise when a policy augments them."""

    def __init__(self, job: TrainJob, network: Path, passes: int, device: torch.device):
        self.fold, self.passes, self.device = job.split.name, passes, device
        self.guess: Guess = load_guess(network, job, device)
        self.feed = DeviceFeed(job.split.held_out, named("none"), job.recipe, 0, device)  # type: ignore[arg-type]
        self.at_once = max(1, _AT_ONCE[device.type] // (passes * self.feed.images[0].numel()))

    def error(self, policy: Policy, seed: int) -> float:
        """The share of images that are not recognised in any pass. All passes of some images go at once."""
        feed, generator = self.feed.with_policy(policy), Generator(self.device).manual_seed(seed)
        right = torch.zeros((), device=self.device)
        pieces = (torch.split(each, self.at_once) for each in (feed.images, feed.labels))
        for images, labels in zip(*pieces, strict=True):
            seen = feed.augmented(images.to(self.device).repeat(self.passes, 1, 1, 1), generator)
            hits = self.guess(seen).view(self.passes, -1) == labels
            right += hits.any(0).sum()
        return 1 - float(right) / len(feed.images)


# --- the trials ------------------------------------------------------------------------------------------------------


class PolicyTrial(NamedTuple):
    """A policy by its code, the share of images that it makes unrecognisable, and what that took to find out."""

    code: Code
    error: float
    seconds: float


class Journal:
    """The trials of a fold, a sealed line of JSON each, written as soon as one is finished; without a file, none are
    kept. `sizes` are those of the codes of the space. Lines are numbered: one that is lost is noticed.
    """

    def __init__(self, file: Path | None, sizes: Sequence[int]):
        self.file = file
        self.sizes = tuple(sizes)
        self.count = 0  # trials that are kept

    @classmethod
    def of(cls, folder: Path | None, job: TrainJob, space: Space, settings: FastAASettings) -> Journal:
        """One for whatever would make it other trials."""
        parts = (job.key, str(space), settings.passes, job.seed)
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
        return cls(folder and folder / f"{job.seed}-{key}.jsonl", space.sizes)

    def read(self) -> list[PolicyTrial]:
        """Up to a line that a crash cut off or something changed: it and what follows is forgotten."""
        trials: list[PolicyTrial] = []
        if self.file is None or not self.file.exists():
            return trials
        try:
            content = read_bytes(self.file, MOST_BYTES)
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else error
            raise RunError(f"{str(self.file)!r} could not be read: {why}") from error
        for line in content.splitlines():
            try:
                trials.append(self._trial(line, len(trials)))
            except (RunError, ValueError, TypeError, KeyError):
                break
        self.count = len(trials)
        whole = "".join(json.dumps(_row(number, trial)) + "\n" for number, trial in enumerate(trials)).encode()
        if content != whole:
            write_atomic(self.file, whole)
        return trials

    def _trial(self, line: bytes, number: int) -> PolicyTrial:
        row = unsealed(parse_json(line.decode(), nan=False), needed=True)
        if row["trial"] != number:
            raise ValueError(f"it is trial {row['trial']}, not {number}")
        code = tuple(map(int, row["code"]))
        if len(code) != len(self.sizes) or not all(0 <= c < size for c, size in zip(code, self.sizes, strict=True)):
            raise ValueError(f"the code {code} is not one of the space")
        return PolicyTrial(code, float(row["error"]), float(row["seconds"]))

    def append(self, trial: PolicyTrial) -> None:
        if self.file is not None:
            append_line(self.file, _row(self.count, trial))
            self.count += 1


def _row(number: int, trial: PolicyTrial) -> dict[str, Any]:
    return sealed({"trial": number, **trial._asdict()})


class FoldTrials:
    """TPE on a fold: until there are so many trials or they have taken so many seconds; those in the journal count."""

    def __init__(
        self, space: Space, scorer: Scorer, journal: Journal, count: int, seconds: float, seed: int, tpe: Suggester
    ):
        self.space, self.scorer, self.journal, self.tpe = space, scorer, journal, tpe
        self.count, self.seconds, self.seed = count, seconds, seed
        self.trials = journal.read()[:count]
        tpe.know([(each.code, each.error) for each in self.trials])

    @property
    def name(self) -> str:
        return self.scorer.fold

    def ask(self) -> bool:
        """For the next trial, if there is to be one."""
        took = sum(each.seconds for each in self.trials)
        if len(self.trials) >= self.count or (self.trials and took >= self.seconds):
            return False
        self._began = time.monotonic()
        self.tpe.ask(trial_seed(self.seed, len(self.trials)))
        return True

    def finish(self) -> None:
        """The trial that was asked for."""
        code = self.tpe.code()
        error = self.scorer.error(self.space.decode(code), trial_seed(self.seed, len(self.trials)))
        self.tpe.tell(error)
        self.trials.append(PolicyTrial(code, error, time.monotonic() - self._began))
        self.journal.append(self.trials[-1])

    def __str__(self) -> str:
        trials = self.trials
        count = f"{len(trials)} trial{'s' * (len(trials) > 1)} in {sum(each.seconds for each in trials):.0f} s"
        best = f"{count}, the best leaves {100 * min(each.error for each in trials):.1f} % unrecognised"
        return f"fast-aa, {self.name}: {best}"


def try_all(folds: Sequence[FoldTrials], say: Say) -> None:
    """Of all folds side by side: while one is scored, the next policies of the others are suggested."""
    waiting = {each.tpe: each for each in folds if each.ask()}
    while waiting:
        for tpe in ready(waiting):
            fold = waiting[tpe]
            fold.finish()
            if len(fold.trials) % _LINE_EVERY == 0 and len(fold.trials) < fold.count:
                say(str(fold))
            if not fold.ask():
                del waiting[tpe]
    for fold in folds:
        say(f"{fold} ({100 * fold.scorer.error(named('none'), fold.seed):.1f} % without a policy)")


def trial_seed(seed: int, number: int) -> int:
    """Below 2^32, as numpy needs it."""
    return int(hashlib.sha256(f"{seed} {number}".encode()).hexdigest()[:8], 16)
