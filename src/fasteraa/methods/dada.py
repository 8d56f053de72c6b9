"""DADA (Li et al., 2020): pairs of operations, chosen by the gradient of a validation loss one training step later.

While a network is trained, every batch draws one pair of operations, whether each of the two is applied, and goes
through it. Then the policy asks: had this step been taken, how would the loss on other images change with the policy?
That derivative is a finite difference of two training losses, at weights a little to both sides along the validation
gradient (DARTS). It reaches magnitudes through the operations. Pairs and gates are drawn, so it reaches them by RELAX,
a score-function estimator whose variance a small network, the control variate, learns to take away.

The settings are the published ones. What is ours:

- A search on each fold of the race, on the images that train there, since the validation loss knows labels. The found
  pairs are concatenated; on a fold races what was found without its held-out images.
- RELAX is taken of the finite difference as a whole, and of the gates only the drawn pair's are credited with it. Both
  leave the estimate unbiased, the latter makes it less noisy.
- The step that is looked ahead to is then taken as it is, clipped, where the authors compute it again.
- Magnitudes follow the slopes of the operations (the authors: straight through all of them, each pixel's slope is 1),
  and 0 leaves an image alone.
- The validation loss is of another batch at every step (theirs: always of the first), the rate falls at every step
  (every epoch), and large images are cropped and flipped alone (ImageNet: resized crops, jittered colours).
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fasteraa.data import ImageSet
from fasteraa.data.batches import Normalise, baseline
from fasteraa.methods.black_box import LATE, plan, too_little
from fasteraa.methods.config import SearchConfig
from fasteraa.methods.method import Budget, Candidate, Method, Published
from fasteraa.methods.space import concatenated, operations_to_test
from fasteraa.methods.task import LONG, Task
from fasteraa.nets import Backbone, build, choose_network
from fasteraa.ops import Context, find, soft
from fasteraa.policy.policy import Choice, Policy, SubPolicy
from fasteraa.runtime.checkpoint import load_checkpoint, misfit, save_checkpoint
from fasteraa.runtime.device import find_device
from fasteraa.runtime.seeds import deterministic, seeded
from fasteraa.runtime.settings import Settings, setting
from fasteraa.train.device_batches import cut
from fasteraa.train.recipe import epochs_words
from fasteraa.train.runner import Runner

_EDGE = 1e-4  # probabilities stay so far away from 0 and 1, where a logarithm would end
_PASSES = 5 / 3  # a step's two full passes and two that stop at the images, in passes of a training
_HALF = 0.5  # of the images are for the validation loss
_FEWEST = 4  # images of a half
_MEASURED = 4  # steps, for a plan in seconds
_WORK_PER_SAVE = 20  # seconds of searching between checkpoints, for each second that one takes
# what a checkpoint holds
_STATE: dict[str, Any] = {
    "search": str, "network": dict, "policy": dict, "variate": dict, "adam": dict, "losses": list, "seconds": float,
    "momentum": list, "generator": Tensor,
}  # fmt: skip
_LINES = 5  # of progress on a fold
_CUTOUT = 16  # pixels, as published for every set
# where it is not as on CIFAR-10
_PUBLISHED: dict[str, dict[str, Any]] = {
    "cifar100": {"batch_size": 32, "weight_decay": 5e-4},
    "svhn": {"network": "wrn-28-10", "batch_size": 32, "network_rate": 0.00125, "weight_decay": 1e-3},
    "imagenet": {"network": "resnet-50", "batch_size": 32, "network_rate": 0.00125, "weight_decay": 1e-4},
}
Pair = tuple[str, str]
Tell = Callable[[int, float], None]  # epochs that are done, the last one's loss


@dataclass(frozen=True, kw_only=True)
class DadaSettings(Settings):
    """`about` of each field is its help."""

    network: str = setting("auto", "What is trained meanwhile; auto: wrn-40-2 as published, a small one on a CPU.")
    epochs: int = setting(20, "Passes over the images that train.", least=1)
    batch_size: int = setting(128, "Images of a step, and as many for the validation loss.", least=2)
    temperature: float = setting(0.5, "Of the relaxed draws that the control variate sees.", above=0)
    policy_rate: float = setting(5e-3, "Of Adam, for the policy and the control variate.", above=0)
    beta1: float = setting(0.5, "Adam's first coefficient.", least=0, below=1)
    beta2: float = setting(0.999, "Adam's second coefficient.", least=0, below=1)
    network_rate: float = setting(0.1, "Of SGD, at the start; half a cosine leads to the last.", above=0)
    last_rate: float = setting(1e-3, "Of SGD, in the end.", above=0)
    momentum: float = setting(0.9, "Of SGD.", least=0, below=1)
    weight_decay: float = setting(2e-4, "Of SGD.", least=0)
    cutout: int | None = setting(
        None,
        "Side in pixels of the square cut out of every image after the policy; None: 16, at most half of the image.",
        least=0,
    )
    clip: float = setting(5.0, "The largest length of the network's gradient.", above=0)
    difference: float = setting(1e-2, "How far to both sides the training losses are taken.", above=0)
    units: int = setting(100, "Of the control variate's hidden layer.", least=1)
    kept: int = setting(25, "The best so many pairs of each fold become sub-policies.", least=1)


class Dada(Method):
    """The best pairs of all folds, concatenated."""

    name = "dada"
    trains = True  # a network of its own, not the runner's: it needs folds and takes time
    settings_class = DadaSettings
    settings: DadaSettings

    @classmethod
    def published(cls, source: str = "cifar10") -> Published:
        """Its defaults, also on a CPU; on other sets than CIFAR-10 what the authors' scripts have for them."""
        return Published({"network": "wrn-40-2", **_PUBLISHED.get(source, {})})

    @classmethod
    def reduced(cls) -> Self:
        return cls(DadaSettings(epochs=1, network="small", batch_size=16, kept=3))

    def candidates(self, task: Task, budget: Budget, runner: Runner) -> list[Candidate]:
        settings, pairs = self.settings, pairs_of(task.config)
        if not pairs or min(min(map(len, halves(each.train, task.seed))) for each in task.folds) < _FEWEST:  # type: ignore[arg-type]
            return []
        began = time.time()
        planned = plan(task, self.name, settings, lambda: payable_epochs(task, budget, settings))
        if not planned["epochs"]:
            return too_little(task, self.name, 1, settings.epochs)
        task.say(
            f"dada: {epochs_words(planned['epochs'])} on {len(task.folds)} folds, {len(pairs)} pairs of operations"
        )
        by_fold: dict[str, Policy] = {}
        tried: list[list[Any]] = []
        for number, split in enumerate(task.folds):
            name = f"{self.name}/{split.name}"
            end = began + LATE * budget.seconds * (number + 1) / len(task.folds)
            search = partial(self._search, task, number, planned["epochs"], end)
            outcome = plan(task, name, settings, search)
            seconds = round(outcome["seconds"] / max(len(outcome["losses"]), 1), 3)  # of an epoch
            tried += [[split.name, loss, seconds] for loss in outcome["losses"]]
            if outcome["pairs"]:
                by_fold[split.name] = policy_of(outcome["pairs"], task.config)
        if len(by_fold) < len(task.folds):
            # on a fold without a result all pairs would race, and others' searches have seen its held-out images
            missing = ", ".join(split.name for split in task.folds if split.name not in by_fold)
            task.say(f"{self.name}: no policies, nothing was found on {missing}, and every fold races its own")
            return []
        whole = concatenated(list(by_fold.values()), self.name)
        return [Candidate(self.name, whole, on_folds=by_fold, details={"tried": tried})]

    def _search(self, task: Task, fold: int, epochs: int, end: float) -> dict[str, Any]:
        """The pairs that were found on a fold until `end`, and the validation loss of each epoch; no pairs if it
        diverged.
        """
        search, folder = make_search(task, fold, self.settings), task.folder_of(self.name)
        name = task.folds[fold].name
        whole = search.run(
            epochs,
            None if folder is None else folder / f"{name}.pt",
            lambda done, loss: task.say(f"dada, {name}: epoch {done} of {epochs}, validation loss {loss:.3f}"),
            until=end,
        )
        losses, seconds = [loss for loss in whole if math.isfinite(loss)], search.seconds
        if len(losses) < len(whole):
            task.say(f"dada, {task.folds[fold].name}: a loss was not finite, nothing was found")
            return {"pairs": [], "losses": losses, "seconds": seconds}
        task.say(f"dada, {task.folds[fold].name}: validation loss {losses[-1]:.3f} ({seconds:.0f} s)")
        if len(losses) < epochs:
            why = "the machine is slower than was measured"
            task.say(f"dada, {name}: its time is up after {len(losses)} of {epochs_words(epochs)}, {why}")
        steps = len(losses) * search.steps
        return {"pairs": search.policy.best(self.settings.kept), "losses": losses, "seconds": seconds, "steps": steps}


def pairs_of(config: SearchConfig) -> list[Pair]:
    """Of different operations: 105 of the published fifteen, which are all but flip and sample pairing."""
    return list(combinations(operations_to_test(config.ops, sample_pairing=False), 2))


def payable_epochs(task: Task, budget: Budget, settings: DadaSettings) -> dict[str, Any]:
    """All of them, or as many as the budget pays for."""
    folds = len(task.folds)
    longest = min(task.recipe.epochs, int(LONG * task.informative_epochs()))
    if budget.trainings is not None:
        epoch = folds * _HALF * _PASSES / longest  # in trainings
        epochs = min(settings.epochs, math.floor(budget.trainings / epoch))
        return {"epochs": epochs, "trainings": math.ceil(epochs * epoch)}
    if budget.seconds == math.inf:
        return {"epochs": settings.epochs, "trainings": 0}
    began = time.monotonic()
    search = make_search(task, 0, settings)
    epoch = folds * search.steps * search.step_seconds()
    left = budget.seconds - (time.monotonic() - began)
    return {"epochs": max(0, min(settings.epochs, math.floor(left / epoch))), "trainings": 0}


def policy_of(pairs: list[Any], config: SearchConfig) -> Policy:
    """Sub-policies of two operations: ((op, probability, magnitude), the same)."""
    subs = tuple(SubPolicy(tuple((_choice(*each),) for each in pair)) for pair in pairs)
    ops = {op for pair in pairs for op, *_ in pair}
    return Policy(subs, "dada", {op: span for op, span in config.spans.items() if op in ops}, config.fill)


def _choice(op: str, probability: float, magnitude: float) -> Choice:
    return Choice(op, probability, magnitude if find(op).span else None)


def halves(data: ImageSet, seed: int) -> tuple[ImageSet, ImageSet]:
    """Images that train, and images for the validation loss."""
    return data.split(_HALF, seed)


# --- the policy and its gradient --------------------------------------------------------------------------------------


class Draw(NamedTuple):
    """A pair and whether its two operations are applied; and what RELAX needs to know about that."""

    pair: int
    gates: tuple[bool, bool]
    relaxed: Tensor  # what was drawn before it was rounded, (3 pairs,)
    conditional: Tensor  # the same, drawn again given what it was rounded to
    chance: Tensor  # log-probability of the pair and its two gates
    chance_of_all: Tensor  # and of the gates of all pairs


class PairPolicy(nn.Module):
    """How likely each pair is, and probability and magnitude of its two operations. It begins level."""

    def __init__(self, pairs: list[Pair], settings: DadaSettings):
        super().__init__()
        self.pairs, self.temperature = pairs, settings.temperature
        self.choice = nn.Parameter(torch.zeros(len(pairs)))
        self.probability = nn.Parameter(torch.full((len(pairs), 2), 0.5))
        self.magnitude = nn.Parameter(torch.full((len(pairs), 2), 0.5))

    def draw(self, generator: Generator) -> Draw:
        """One for a whole batch. The host must know it, so it waits."""
        count, device = len(self.pairs), self.choice.device
        tiny = torch.finfo(torch.float32).tiny
        u, v = torch.rand(2, count, 3, generator=generator, device=device).clamp(tiny, 1 - 1e-7)
        logarithms, probability = self.choice.log_softmax(0), self.probability.clamp(_EDGE, 1 - _EDGE)
        z = logarithms - (-u[:, 0].log()).log()
        gate = probability.logit() + u[:, 1:].logit()
        pair, applied = z.argmax(), gate.detach() > 0
        chances = torch.where(applied, probability, 1 - probability).log()
        first, second = applied[pair].tolist()
        return Draw(
            int(pair),
            (first, second),
            self._relaxed(z, gate),
            self._relaxed(_again(logarithms, pair, v[:, 0]), _gates_again(probability, applied, v[:, 1:])),
            logarithms[pair] + chances[pair].sum(),
            logarithms[pair] + chances.sum(),
        )

    def _relaxed(self, z: Tensor, gate: Tensor) -> Tensor:
        return torch.cat([(z / self.temperature).softmax(0), (gate / self.temperature).sigmoid().flatten()])

    def augment(self, images: Tensor, draw: Draw, config: SearchConfig, generator: Generator) -> Tensor:
        """Float images in [0, 1] through the drawn pair, differentiable in its magnitudes."""
        count, device = len(images), images.device
        for place, (op, applied) in enumerate(zip(self.pairs[draw.pair], draw.gates, strict=True)):
            sign = torch.randint(2, (count,), generator=generator, device=device).float() * 2 - 1
            hole = torch.rand(count, 2, generator=generator, device=device, dtype=torch.float64)
            partner = torch.randint(count, (count,), generator=generator, device=device)
            if applied:
                context = Context(images[partner].detach(), hole, fill=config.fill)
                images = soft(op, images, self.magnitude[draw.pair, place], sign, context, config.spans)
        return images

    @torch.no_grad()
    def project_(self) -> None:
        for parameter in (self.probability, self.magnitude):
            parameter.clamp_(0, 1)

    def best(self, count: int) -> list[Any]:
        """The likeliest pairs, each as ((op, probability, magnitude), the same)."""
        order = self.choice.detach().cpu().sort(descending=True, stable=True).indices[:count].tolist()
        numbers = torch.stack([self.probability, self.magnitude], 2).detach().cpu().clamp(0, 1).tolist()
        return [[[op, *numbers[n][place]] for place, op in enumerate(self.pairs[n])] for n in order]


def _again(logarithms: Tensor, pair: Tensor, v: Tensor) -> Tensor:
    """Gumbel draws given that `pair` is the largest."""
    top = -v[pair].log()
    others = -(-v.log() / logarithms.exp() + top).log()
    return torch.where(torch.arange(len(v), device=v.device) == pair, -top.log(), others)


def _gates_again(probability: Tensor, applied: Tensor, v: Tensor) -> Tensor:
    """Logistic draws given their signs."""
    u = torch.where(applied, 1 - probability + v * probability, v * (1 - probability))
    return probability.logit() + u.clamp(1e-7, 1 - 1e-7).logit()


class Relax:
    """The gradient of an expected loss by pairs and probabilities, and the control variate that learns on the way."""

    def __init__(self, policy: PairPolicy, settings: DadaSettings):
        self.policy = policy
        count, device = 3 * len(policy.pairs), policy.choice.device
        variate = (nn.Linear(count, settings.units), nn.Tanh(), nn.Linear(settings.units, 1))
        self.variate = nn.Sequential(*variate).to(device)
        parameters = [*policy.parameters(), *self.variate.parameters()]
        self.optimiser = torch.optim.Adam(parameters, settings.policy_rate, (settings.beta1, settings.beta2))

    def step(self, draw: Draw, loss: Tensor) -> None:
        """`loss` is what the draw led to; the gradient of the magnitudes is there already."""
        drawn = (self.policy.choice, self.policy.probability)
        score = torch.autograd.grad(draw.chance, drawn, retain_graph=True)
        score_of_all = torch.autograd.grad(draw.chance_of_all, drawn, retain_graph=True)
        relaxed, conditional = self.variate(draw.relaxed)[0], self.variate(draw.conditional)[0]
        slopes = torch.autograd.grad(relaxed - conditional, drawn, create_graph=True)
        gradients = [loss * a - conditional * b + c for a, b, c in zip(score, score_of_all, slopes, strict=True)]
        spread = torch.stack([each.square().sum() for each in gradients]).sum()
        own = torch.autograd.grad(spread, list(self.variate.parameters()), allow_unused=True)
        for parameter, gradient in zip((*drawn, *self.variate.parameters()), (*gradients, *own), strict=True):
            parameter.grad = None if gradient is None else gradient.detach()
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.policy.project_()


# --- the loop --------------------------------------------------------------------------------------------------------


def make_search(task: Task, fold: int, settings: DadaSettings) -> PairSearch:
    device, data = find_device(task.device), task.folds[fold].train
    assert isinstance(data, ImageSet)
    name = choose_network(settings.network, min(data.size), device.type == "cpu")
    with seeded(task.seed + fold):
        network = build(name, len(data.classes), min(data.size)).to(device)
        relax = Relax(PairPolicy(pairs_of(task.config), settings).to(device), settings)
    search = PairSearch(network, relax, halves(data, task.seed), task.config, settings, task.seed + fold)
    parts = [data.fingerprint, task.config.plain(), settings.plain(), task.seed, fold, name]
    search.identity = json.dumps(parts, sort_keys=True)
    return search


class PairSearch:
    """One search: a network, a policy, and two halves of the images."""

    def __init__(
        self,
        network: Backbone,
        relax: Relax,
        images: tuple[ImageSet, ImageSet],
        config: SearchConfig,
        settings: DadaSettings,
        seed: int,
    ):
        self.network, self.relax, self.policy = network, relax, relax.policy
        self.config, self.settings = config, settings
        self.device = relax.policy.choice.device
        self.images = [each.images.to(self.device) for each in images]
        self.labels = [each.labels.to(self.device) for each in images]
        self.normalise = Normalise.of(self.images[0])
        half = min(images[0].size) // 2
        self.cutout = min(_CUTOUT, half) if settings.cutout is None else settings.cutout
        self.generator = Generator(self.device).manual_seed(seed)
        self.batch = min(settings.batch_size, *map(len, images))
        self.steps = len(images[0]) // self.batch  # of an epoch
        self.weights: list[Tensor] = list(network.parameters())
        self.momentum = [torch.zeros_like(each) for each in self.weights]
        self.losses: list[float] = []
        self.seconds, self.identity = 0.0, ""

    @torch.inference_mode(False)
    @torch.enable_grad()
    def run(
        self,
        epochs: int,
        checkpoint: Path | None = None,
        tell: Tell = lambda done, loss: None,
        until: float = math.inf,
    ) -> list[float]:
        """The mean validation loss of each epoch, up to one that is not finite. A killed search continues.

        After the first epoch it begins none that would end later than `until` (time.time()).
        """
        self._load(checkpoint, epochs)
        losses = self.losses
        save_next = began = time.monotonic()
        before = self.seconds
        with deterministic(self.device, on_gpu=True):
            for epoch in range(len(losses), epochs):
                epoch_began = time.time()
                rates = [self._rate((epoch * self.steps + step) / (epochs * self.steps)) for step in range(self.steps)]
                batches = zip(self._batches(0), self._batches(1), rates, strict=False)
                losses.append(float(torch.stack([self.step(*each) for each in batches]).mean()))
                self.seconds = before + time.monotonic() - began
                if epoch + 1 < epochs and epoch * _LINES // epochs != (epoch + 1) * _LINES // epochs:
                    tell(epoch + 1, losses[-1])
                now = time.time()
                if not math.isfinite(losses[-1]) or now + (now - epoch_began) > until:
                    break
                if checkpoint is not None and time.monotonic() >= save_next and epoch + 1 < epochs:
                    save_next = self._save(checkpoint, epochs)
        if checkpoint is not None:
            checkpoint.unlink(missing_ok=True)
        return losses

    def _save(self, checkpoint: Path, epochs: int) -> float:
        """Returns when the next one is due: the disk gets a small share of the time."""
        began = time.monotonic()
        state = {name: each.state_dict() for name, each in self._parts().items()}
        numbers = {"losses": list(self.losses), "seconds": self.seconds}
        drawn = {"momentum": self.momentum, "generator": self.generator.get_state()}
        save_checkpoint(checkpoint, {"search": self._identity(epochs), **state, **numbers, **drawn})
        ended = time.monotonic()
        return ended + _WORK_PER_SAVE * (ended - began)

    def _load(self, checkpoint: Path | None, epochs: int) -> None:
        """One of another search, or of none, is not continued: what it is of begins again."""
        state = None if checkpoint is None else load_checkpoint(checkpoint, self.device, _STATE)
        if state is None or state["search"] != self._identity(epochs):
            return
        assert checkpoint is not None
        try:
            for name, each in self._parts().items():
                each.load_state_dict(state[name])
            self._put_momentum(state["momentum"])
            self.generator.set_state(state["generator"].cpu())
            self.losses, self.seconds = [float(each) for each in state["losses"]], float(state["seconds"])
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            raise misfit(checkpoint, error) from error

    def _parts(self) -> dict[str, Any]:
        relax = self.relax
        return {"network": self.network, "policy": self.policy, "variate": relax.variate, "adam": relax.optimiser}

    def _identity(self, epochs: int) -> str:
        """Whatever would make it another search."""
        return hashlib.sha256(f"{self.identity} {epochs}".encode()).hexdigest()

    @torch.no_grad()
    def _put_momentum(self, momentum: list[Tensor]) -> None:
        for own, value in zip(self.momentum, momentum, strict=True):
            own.copy_(value)

    def step_seconds(self) -> float:
        """Of a step, after the first two, which start things; it cannot be continued after that."""
        began = 0.0
        for number, batches in zip(range(_MEASURED), self._endless(), strict=False):
            if number == _MEASURED // 2:
                began = time.monotonic()
            float(self.step(*batches, self.settings.network_rate))
        return (time.monotonic() - began) / (_MEASURED - _MEASURED // 2)

    def _endless(self) -> Iterator[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
        while True:
            yield from zip(self._batches(0), self._batches(1), strict=False)

    def _rate(self, done: float) -> float:
        settings = self.settings
        return settings.last_rate + (settings.network_rate - settings.last_rate) * 0.5 * (1 + math.cos(math.pi * done))

    def _batches(self, half: int) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self.images[half], self.labels[half]
        order = torch.randperm(len(labels), generator=self.generator, device=self.device)
        for index in torch.split(order[: self.steps * self.batch], self.batch):
            yield images[index], labels[index]

    def step(self, train: tuple[Tensor, Tensor], valid: tuple[Tensor, Tensor], rate: float) -> Tensor:
        """A step of the network, and the step of the policy that the validation loss after it asks for."""
        (images, labels), draw = train, self.policy.draw(self.generator)
        images = baseline(images, self.config, self.generator).float() / 255
        augmented = self.policy.augment(images, draw, self.config, self.generator)
        if self.cutout:
            augmented = cut(augmented, self.cutout, self.normalise.mean, self.generator)
        seen = augmented.detach()
        before = [each.detach().clone() for each in self.weights]
        self._descend(self._gradient(seen, labels)[1], rate)
        after = [each.detach().clone() for each in self.weights]
        loss, ahead = self._gradient(valid[0].float() / 255, valid[1])
        length = torch.stack(torch._foreach_norm(ahead)).norm().clamp(min=1e-12)
        radius = self.settings.difference / length
        sides = [self._beside(before, ahead, sign * radius, seen, labels) for sign in (1, -1)]
        (plus, plus_slope), (minus, minus_slope) = sides
        scale = -1 / (2 * radius)  # of a step of rate 1: with the rate, the policy's steps would shrink along with it
        if augmented.requires_grad:
            torch.autograd.backward(augmented, scale * (plus_slope - minus_slope))
        self.relax.step(draw, scale * (plus - minus))
        self._put(after)
        return loss

    def _gradient(self, images: Tensor, labels: Tensor) -> tuple[Tensor, list[Tensor]]:
        """A loss and its gradient by the weights."""
        loss = F.cross_entropy(self.network(self.normalise(images)), labels)
        return loss.detach(), list(torch.autograd.grad(loss, self.weights))

    @torch.no_grad()
    def _descend(self, gradient: list[Tensor], rate: float) -> None:
        settings = self.settings
        length = torch.stack(torch._foreach_norm(gradient)).norm()
        torch._foreach_mul_(gradient, (settings.clip / (length + 1e-6)).clamp(max=1))
        torch._foreach_add_(gradient, self.weights, alpha=settings.weight_decay)
        torch._foreach_mul_(self.momentum, settings.momentum)
        torch._foreach_add_(self.momentum, gradient)
        torch._foreach_add_(self.weights, self.momentum, alpha=-rate)

    def _beside(
        self, weights: list[Tensor], along: list[Tensor], far: Tensor, images: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The training loss at weights moved so far along, and its gradient by the images."""
        self._put([weight + far * each for weight, each in zip(weights, along, strict=True)])
        images = images.detach().requires_grad_()
        self.network.requires_grad_(False)
        loss = F.cross_entropy(self.network(self.normalise(images)), labels)
        (gradient,) = torch.autograd.grad(loss, images)
        self.network.requires_grad_(True)
        return loss.detach(), gradient

    @torch.no_grad()
    def _put(self, weights: list[Tensor]) -> None:
        torch._foreach_copy_(self.weights, weights)
