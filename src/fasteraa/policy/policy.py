"""The frozen policy: a small, versioned, hashed JSON document that explains itself. Never imports torch.

What it is made of is in `parts`, how it is read and written in `json_format`. Whatever can be made can be saved, and is
the same when it is loaded again: every number, name and note is brought into the form of the file when it is made.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

from fasteraa.errors import PolicyError
from fasteraa.ops import Span, check_span, find
from fasteraa.policy.json_format import (
    FORMAT,
    LARGEST_FILE,
    VERSION,
    hash_of,
    plain_provenance,
    plain_text,
    read,
    write,
)
from fasteraa.policy.parts import (
    MOST_PASSES,
    SIGNS,
    Choice,
    Magnitude,
    Stage,
    Strength,
    SubPolicy,
    check_colour,
    plain_span,
)
from fasteraa.policy.schedule import SchedulePart, active, flattened, intervals, parts_of, share_of, shares
from fasteraa.runtime.arguments import checks_types
from fasteraa.runtime.documents import quoted, read_text
from fasteraa.runtime.files import write_atomic

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from fasteraa.policy.captured import CapturedPolicy
    from fasteraa.policy.transform import PolicyTransform

__all__ = [
    "FORMAT", "MOST_PASSES", "SIGNS", "VERSION", "Choice", "Magnitude", "Policy", "Stage", "Strength", "SubPolicy",
    "check_colour",
]  # fmt: skip


@dataclass(frozen=True)
class Policy:
    """Sub-policies to choose among, each a sequence of stages; what fills empty places; where it came from."""

    sub_policies: tuple[SubPolicy, ...]
    name: str = "policy"
    spans: Mapping[str, Span] = field(default_factory=dict)
    fill: tuple[int, int, int] = (0, 0, 0)
    hole_fill: tuple[int, int, int] = (125, 123, 114)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    strength: Strength = field(default_factory=Strength)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise PolicyError(f"the name of a policy must be text, got {quoted(self.name)}")
        object.__setattr__(self, "name", plain_text(self.name))
        object.__setattr__(self, "sub_policies", tuple(self.sub_policies))
        if not all(isinstance(sub, SubPolicy) for sub in self.sub_policies):
            kinds = {type(sub).__name__ for sub in self.sub_policies} - {"SubPolicy"}
            raise PolicyError(f"a policy is made of sub-policies (SubPolicy), got {', '.join(sorted(kinds))}")
        if not isinstance(self.strength, Strength):
            raise PolicyError(f"the strength of a policy must be a Strength, got {quoted(self.strength)}")
        if not self.sub_policies or not sum(sub.weight for sub in self.sub_policies) > 0:
            raise PolicyError(
                f"a policy must hold a sub-policy with a positive weight, {quoted(self.name)} holds none "
                "(for no augmentation use Policy.named('none'))"
            )
        for start, end in intervals(self.sub_policies):
            if not sum(sub.weight for sub in active(self.sub_policies, start)) > 0:
                raise PolicyError(
                    "at every moment of a training a policy must hold a sub-policy with a positive weight, "
                    f"{quoted(self.name)} holds none from {start:g} to {end:g}"
                )
        spans = {name: check_span(find(name), plain_span(name, span)) for name, span in sorted(self.spans.items())}
        object.__setattr__(self, "spans", {name: span for name, span in spans.items() if span != find(name).span})
        for what in ("fill", "hole_fill"):
            object.__setattr__(self, what, check_colour(what, getattr(self, what)))
        object.__setattr__(self, "provenance", plain_provenance(self.provenance))

    def __hash__(self) -> int:
        return hash(self.hash)

    def __repr__(self) -> str:
        return f"<Policy {self.name}: sub-policies {len(self.sub_policies)}, {self.hash[:19]}>"

    @property
    def ops(self) -> list[str]:
        """The operations that can happen, in the order they first appear."""
        return list(dict.fromkeys(choice.op for choice in self.choices() if choice.weight * choice.probability > 0))

    def choices(self) -> Iterator[Choice]:
        """All choices, of every stage of every sub-policy."""
        for sub in self.sub_policies:
            for stage in sub.stages:
                yield from stage

    def exposures(self) -> Iterator[tuple[Choice, float]]:
        """Every choice, and how often it augments an image that passes a sub-policy (the mean over a training)."""
        for sub, drawn in zip(self.sub_policies, shares(self.sub_policies), strict=True):
            for stage in sub.stages:
                share = drawn / sum(choice.weight for choice in stage)
                for choice in stage:
                    yield choice, share * choice.weight * choice.probability

    @property
    def depth(self) -> int:
        """The largest number of stages of a sub-policy."""
        return max(len(sub.stages) for sub in self.sub_policies)

    @property
    def does_nothing(self) -> bool:
        """Whether it leaves every image as it is: no operation can happen, or only some that have no effect."""
        if not self.strength.most:
            return True
        return not any(often and self._has_effect(choice) for choice, often in self.scaled().exposures())

    def _has_effect(self, choice: Choice) -> bool:
        """At magnitude 0 an operation has none: every span begins where it leaves the image alone."""
        return find(choice.op).span is None or choice.range[1] > 0

    @property
    def scheduled(self) -> bool:
        """Whether it changes during a training."""
        return any(sub.during is not None for sub in self.sub_policies)

    @cached_property
    def parts(self) -> tuple[SchedulePart, ...]:
        """What it is from one share of a training to another: one part, the policy itself, without a schedule."""
        return parts_of(self) if self.scheduled else (SchedulePart(0.0, 1.0, self),)

    def at_epoch(self, epoch: int, epochs: int) -> Policy:
        """The policy of an epoch (counted from 0) of a training of so many; later ones have the last part."""
        return self.at_share(share_of(epoch, epochs))

    def at_share(self, share: float) -> Policy:
        """The policy of a moment, a share of the training in [0, 1); from 1 on the last part."""
        return next((part.policy for part in self.parts if share < part.end), self.parts[-1].policy)

    def flattened(self) -> Policy:
        """Without its schedule: at any time the mean over the training."""
        return flattened(self)

    def span(self, op: str) -> Span | None:
        """The span of an operation in this policy; None if the operation has no magnitude."""
        return self.spans.get(op, find(op).span)

    @cached_property
    def hash(self) -> str:
        """sha256 over what the policy does; name and provenance do not count."""
        return hash_of(self)

    def with_strength(
        self,
        passes: int | Sequence[float] | None = None,
        magnitude: float | None = None,
        probability: float | None = None,
    ) -> Policy:
        """The same policy, applied more or less; what is left out stays as it is.

        `passes` is how many sub-policies an image passes through: a number, or the shares of 0, 1, 2, ... of them.
        """
        now = self.strength
        strength = Strength(
            now.passes if passes is None else _shares(passes),
            now.magnitude if magnitude is None else magnitude,
            now.probability if probability is None else probability,
        )
        return replace(self, strength=strength)

    def scaled(self) -> Policy:
        """The scales of the strength worked into every choice, where they act; only the passes remain beside them."""
        strength = self.strength
        if strength.magnitude == 1 and strength.probability == 1:
            return self
        subs = tuple(
            replace(sub, stages=tuple(tuple(_scale(choice, strength) for choice in stage) for stage in sub.stages))
            for sub in self.sub_policies
        )
        return replace(self, sub_policies=subs, strength=Strength(strength.passes))

    def discretize(self) -> Policy:
        """One operation per stage: the one with the largest weight (the paper samples it again each time)."""
        subs = (
            replace(
                sub,
                stages=tuple((replace(max(stage, key=lambda c: c.weight), weight=1.0),) for stage in sub.stages),
            )
            for sub in self.sub_policies
        )
        return replace(self, sub_policies=tuple(subs), name=f"{self.name} (discretized)")

    def without(self, *ops: str) -> Policy:
        """Another policy: these operations never happen, and what else a stage may choose takes their share.

        Where a stage knows nothing else it is left out.
        """
        for op in ops:
            find(op)
        subs = []
        for sub in self.sub_policies:
            stages_left = [tuple(choice for choice in stage if choice.op not in ops) for stage in sub.stages]
            stages = tuple(stage for stage in stages_left if sum(choice.weight for choice in stage) > 0)
            subs.append(replace(sub, stages=stages))
        if self.depth and not any(sub.stages for sub in subs):
            raise PolicyError(f"{quoted(self.name)} without {', '.join(ops)} has no operation left")
        left_out = [op for op in ops if op in self.ops]
        name = f"{self.name} (without {', '.join(left_out)})" if left_out else self.name
        return replace(self, sub_policies=tuple(subs), name=name)

    # --- reading and writing -----------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The text of the policy file."""
        return write(self)

    @checks_types(PolicyError)
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON file; either the whole file is there afterwards or the old one still is."""
        path = Path(path)
        if not path.name:
            raise PolicyError(f"a policy is written to a file, got {str(path)!r}")
        write_atomic(path, self.to_json(), PolicyError)

    @classmethod
    @checks_types(PolicyError)
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy file; one that is damaged, or was changed without its hash, is refused."""
        text = read_text(path, PolicyError, most=LARGEST_FILE)
        try:
            return cls.from_json(text)
        except PolicyError as error:
            raise PolicyError(f"{str(path)!r}: {error}") from error

    @classmethod
    def from_json(cls, text: str) -> Policy:
        """The policy in the text of a policy file."""
        return read(text)

    @staticmethod
    def named(name: str, **settings: Any) -> Policy:
        """A published or baseline policy: see `fasteraa.policy.named.NAMES`."""
        from fasteraa.policy.named import named

        return named(name, **settings)

    # --- sharing -----------------------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | os.PathLike[str], **about: Any) -> None:
        """A folder as a hub repository has it: policy.json and its card; see `fasteraa.policy.hub.save_folder`."""
        from fasteraa.policy.hub import save_folder

        save_folder(self, folder, **about)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Share it on the Hugging Face hub with a card; returns the commit's address; see `fasteraa.policy.hub.push`.

        Options: token, private, revision, message, endpoint; license, tags, preview (a picture) for the card.
        """
        from fasteraa.policy.hub import push

        return push(self, repo_id, **options)

    @staticmethod
    def from_hub(source: str | os.PathLike[str], **options: Any) -> Policy:
        """A policy that somebody shared: `user/name` on the hub, or a folder. Options: revision, token, endpoint."""
        from fasteraa.policy.hub import pull

        return pull(source, **options)

    # --- use ---------------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """The policy in words, a line per sub-policy."""
        from fasteraa.policy.describe import describe

        return describe(self)

    def transform(self, pool: Any = None, mask_fill: int = 0, epochs: int | None = None) -> PolicyTransform:
        """A torchvision v2 transform; `pool` holds the partners of sample_pairing for single images, `mask_fill` is
        what masks get from outside the image. A policy with a schedule learns where the training of `epochs` stands
        by the transform's `set_epoch(epoch)`; until then its last part applies.
        """
        from fasteraa.policy.transform import PolicyTransform

        return PolicyTransform(self, pool=pool, mask_fill=mask_fill, epochs=epochs)

    def export(self, target: str, **options: Any) -> Any:
        """The policy as an object of another library; see `fasteraa.export`.

        The exporters lie below this room, so they are found by name, when one is asked for.
        """
        return import_module("fasteraa.export").render(self, target, **options)

    def to_torchvision(self, pool: Any = None, mask_fill: int = 0) -> PolicyTransform:
        """A torchvision v2 transform: the same as `transform`."""
        return self.transform(pool, mask_fill)

    def to_timm(self, pipeline: Any = None, pool: Any = None) -> Any:
        """A callable for timm, or `create_transform`'s pipeline with the policy in its place."""
        return self.export("timm", pipeline=pipeline, pool=pool)

    def to_albumentations(self, native: bool = False, pool: Any = None, mask_fill: int = 0) -> Any:
        """One exact transform of ours, or (native) a tree of albumentations' own that loads without fasteraa.

        `mask_fill` is what masks get from outside the image.
        """
        return self.export("albumentations", native=native, pool=pool, mask_fill=mask_fill)

    def to_kornia(self) -> Any:
        """A kornia augmentation for float images in [0, 1], with a draw of its own for every image."""
        return self.export("kornia")

    def to_dali(self) -> Any:
        """An `auto_aug.core.Policy` for DALI's `apply_auto_augment`."""
        return self.export("dali")

    def to_keras(self, value_range: tuple[float, float] = (0, 255), seed: int | None = None) -> Any:
        """A Keras layer that augments while training."""
        return self.export("keras", value_range=value_range, seed=seed)

    def to_python(self) -> str:
        """The source of a file that needs Pillow alone."""
        source: str = self.export("python")
        return source

    def __call__(
        self,
        batch: Tensor,
        generator: Generator | None = None,
        *,
        kernels: bool | None = None,
        normalise: tuple[Sequence[float], Sequence[float]] | None = None,
    ) -> Tensor:
        """Augment uint8 images (B, C, H, W) on any device, with a draw of its own for every image.

        Of a policy with a schedule the last part applies; `at_epoch` gives the others.

        On a GPU Triton kernels do it where they can (`kernels=False`: never; `kernels=True`: or fail), with the same
        result. With `normalise`, a mean and a standard deviation in [0, 1] for each channel, the images come out as
        float32, ready for a network.
        """
        from fasteraa.policy.apply import augment

        return augment(self, batch, generator, kernels=kernels, normalise=normalise)

    def captured(
        self,
        batch: Tensor,
        generator: Generator | None = None,
        *,
        kernels: bool | None = None,
        normalise: tuple[Sequence[float], Sequence[float]] | None = None,
    ) -> CapturedPolicy:
        """A function that augments batches of this batch's shape as the policy itself would, draw by draw.

        On a GPU it is captured as a CUDA graph, so that a call costs the host one launch and not a dozen; elsewhere
        it calls the policy. The generator is given here, on the batch's device, and used by every call.
        """
        from fasteraa.policy.captured import CapturedPolicy

        return CapturedPolicy(self, batch, generator, kernels=kernels, normalise=normalise)


def _shares(passes: Any) -> tuple[float, ...]:
    """Of 0, 1, 2, ... passes, where `passes` is their number or the shares themselves."""
    if isinstance(passes, SupportsIndex) and not isinstance(passes, bool) and not hasattr(passes, "__len__"):
        number = operator.index(passes)  # numpy's whole numbers, too
        if not 0 <= number <= MOST_PASSES:
            raise PolicyError(f"passes must be in 0..{MOST_PASSES}, got {quoted(number)}")
        return (0.0,) * number + (1.0,)
    if isinstance(passes, str | bytes | Mapping | Set) or not isinstance(passes, Iterable):
        raise PolicyError(
            f"passes must be a whole number in 0..{MOST_PASSES}, or a list of the shares of 0, 1, 2, ... passes, got "
            f"{quoted(passes)}"
        )
    return tuple(passes)


def _scale(choice: Choice, strength: Strength) -> Choice:
    probability = min(1.0, choice.probability * strength.probability)
    if choice.magnitude is None:
        return replace(choice, probability=probability)
    low, high = (min(1.0, end * strength.magnitude) for end in choice.range)
    return replace(choice, probability=probability, magnitude=(low, high))
