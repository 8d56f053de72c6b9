"""The frozen policy: a small, versioned, hashed JSON document that explains itself. Never imports torch."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fasteraa.errors import PolicyError, choices_hint, reason
from fasteraa.ops import Span, check_span, find

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from fasteraa.policy.recorded import RecordedPolicy
    from fasteraa.policy.transform import PolicyTransform

FORMAT = "fasteraa-policy"
VERSION = 1
SIGNS = ("random", "+", "-")
Magnitude = float | tuple[float, float] | None


def _tidy(number: float) -> float:
    """Nine significant digits: enough to bring any float32 back, few enough to be the same on every machine."""
    return float(f"{number:.9g}")


@dataclass(frozen=True)
class Choice:
    """One operation of a stage: drawn with `weight`, then applied with `probability`.

    `magnitude` is a unit number, a range to draw from uniformly, or None where the operation has none. `sign` says
    how a signed operation gets its direction; it is None for the others.
    """

    op: str
    probability: float = 1.0
    magnitude: Magnitude = None
    weight: float = 1.0
    sign: str | None = None

    def __post_init__(self) -> None:
        row = find(self.op)
        _check_unit("probability", self.probability, self.op)
        _check_weight(self.weight, f"op {self.op!r}")
        tidy = {"probability": _tidy(self.probability), "weight": _tidy(self.weight)}
        sign = self.sign or "random" if row.signed else self.sign
        if sign not in (SIGNS if row.signed else (None,)):
            known = " or ".join(SIGNS) if row.signed else "absent: the operation has no direction"
            raise PolicyError(f"sign must be {known}, got {self.sign!r} for op {self.op!r}")
        self._set(sign=sign, magnitude=self._tidy_magnitude(has_magnitude=row.span is not None), **tidy)

    def _tidy_magnitude(self, has_magnitude: bool) -> Magnitude:
        if not has_magnitude:
            return None
        if self.magnitude is None:
            raise PolicyError(f"magnitude must be in [0, 1], got none for op {self.op!r}")
        if not isinstance(self.magnitude, tuple | list):
            _check_unit("magnitude", self.magnitude, self.op)
            return _tidy(self.magnitude)
        if len(self.magnitude) != 2:
            raise PolicyError(f"a range of magnitudes must be [low, high], got {self.magnitude!r} for op {self.op!r}")
        for end in self.magnitude:
            _check_unit("magnitude", end, self.op)
        low, high = map(_tidy, self.magnitude)
        if low > high:
            raise PolicyError(f"a range of magnitudes must be [low, high], got [{low}, {high}] for op {self.op!r}")
        return low if low == high else (low, high)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest magnitude."""
        if self.magnitude is None:
            return 0.0, 0.0
        return self.magnitude if isinstance(self.magnitude, tuple) else (self.magnitude, self.magnitude)


Stage = tuple[Choice, ...]


@dataclass(frozen=True)
class SubPolicy:
    """Stages that follow one another, each a set of choices of which one is drawn; itself drawn by `weight`."""

    stages: tuple[Stage, ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        _check_weight(self.weight, "a sub-policy")
        stages = tuple((stage,) if isinstance(stage, Choice) else tuple(stage) for stage in self.stages)
        for number, stage in enumerate(stages, 1):
            if not stage or not sum(choice.weight for choice in stage) > 0:
                raise PolicyError(f"a stage must hold an operation with a positive weight, stage {number} holds none")
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "weight", _tidy(self.weight))


@dataclass(frozen=True)
class Strength:
    """How much of a policy is applied: set after it was found, stored with it, changing none of its operations.

    `passes[i]` is the share of images that pass through i sub-policies, each drawn anew; `magnitude` and
    `probability` scale every magnitude and probability, which stay at most 1.
    """

    passes: tuple[float, ...] = (0.0, 1.0)
    magnitude: float = 1.0
    probability: float = 1.0

    def __post_init__(self) -> None:
        passes = tuple(self.passes)
        if not 1 <= len(passes) <= MOST_PASSES + 1:
            raise PolicyError(
                f"passes must give the shares of 0 to {MOST_PASSES} sub-policies, got {len(passes)} of them"
            )
        for share in passes:
            _check_weight(share, "a number of passes")
        if not sum(passes) > 0:
            raise PolicyError(f"passes must hold a positive share, got {list(passes)}")
        for name in ("magnitude", "probability"):
            scale = getattr(self, name)
            if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 <= scale < math.inf:
                raise PolicyError(f"the scale of {name} must be a finite number of at least 0, got {scale!r}")
            object.__setattr__(self, name, _tidy(scale))
        while len(passes) > 1 and not passes[-1]:
            passes = passes[:-1]
        object.__setattr__(self, "passes", tuple(_tidy(share / sum(passes)) for share in passes))

    @property
    def plain(self) -> bool:
        """One sub-policy, as it stands."""
        return self == Strength()

    @property
    def most(self) -> int:
        """The largest number of sub-policies an image passes through."""
        return len(self.passes) - 1


MOST_PASSES = 8


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
        object.__setattr__(self, "sub_policies", tuple(self.sub_policies))
        if not self.sub_policies or not sum(sub.weight for sub in self.sub_policies) > 0:
            raise PolicyError(
                f"a policy must hold a sub-policy with a positive weight, {self.name!r} holds none "
                "(for no augmentation use Policy.named('none'))"
            )
        spans = {name: check_span(find(name), span) for name, span in self.spans.items()}
        object.__setattr__(self, "spans", {name: span for name, span in spans.items() if span != find(name).span})
        for what in ("fill", "hole_fill"):
            object.__setattr__(self, what, check_colour(what, getattr(self, what)))

    def __hash__(self) -> int:
        return hash(self.hash)

    @property
    def ops(self) -> list[str]:
        """The operations that can happen, in the order they first appear."""
        return list(dict.fromkeys(choice.op for choice in self.choices() if choice.weight * choice.probability > 0))

    def choices(self) -> Iterator[Choice]:
        """All choices, of every stage of every sub-policy."""
        for sub in self.sub_policies:
            for stage in sub.stages:
                yield from stage

    def meetings(self) -> Iterator[tuple[Choice, float]]:
        """Every choice, and how often an image meets it on its way through one sub-policy."""
        weights = sum(sub.weight for sub in self.sub_policies)
        for sub in self.sub_policies:
            for stage in sub.stages:
                share = sub.weight / weights / sum(choice.weight for choice in stage)
                for choice in stage:
                    yield choice, share * choice.weight * choice.probability

    @property
    def depth(self) -> int:
        """The largest number of stages of a sub-policy."""
        return max(len(sub.stages) for sub in self.sub_policies)

    def span(self, op: str) -> Span | None:
        """The span of an operation in this policy; None if the operation has no magnitude."""
        return self.spans.get(op, find(op).span)

    @cached_property
    def hash(self) -> str:
        """sha256 over what the policy does; name and provenance do not count."""
        content = {key: value for key, value in self._content().items() if key not in ("name", "provenance")}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()

    def with_strength(
        self,
        passes: int | Sequence[float] | None = None,
        magnitude: float | None = None,
        probability: float | None = None,
    ) -> Policy:
        """The same policy, applied more or less; what is left out stays as it is.

        `passes` is how many sub-policies an image passes through: a number, or the shares of 0, 1, 2, ... of them.
        """
        if isinstance(passes, int):
            if not 0 <= passes <= MOST_PASSES:
                raise PolicyError(f"passes must be in 0..{MOST_PASSES}, got {passes}")
            passes = (0.0,) * passes + (1.0,)
        now = self.strength
        strength = Strength(
            now.passes if passes is None else tuple(passes),
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
        """One operation per stage: the one with the largest weight (the paper samples it anew each time)."""
        subs = (
            replace(
                sub,
                stages=tuple((replace(max(stage, key=lambda c: c.weight), weight=1.0),) for stage in sub.stages),
            )
            for sub in self.sub_policies
        )
        return replace(self, sub_policies=tuple(subs), name=f"{self.name} (discretized)")

    # --- reading and writing -----------------------------------------------------------------------------------

    def _content(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "semantics": "pillow-uint8",
            "interpolation": "nearest",
            "fill": list(self.fill),
            "hole_fill": list(self.hole_fill),
            "spans": {name: vars(span) for name, span in sorted(self.spans.items())},
            "sub_policies": [
                {"weight": sub.weight, "stages": [[self._choice(c) for c in stage] for stage in sub.stages]}
                for sub in self.sub_policies
            ],
            **({} if self.strength.plain else {"strength": _written(self.strength)}),
            "provenance": dict(self.provenance),
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        written: dict[str, Any] = {"op": choice.op, "weight": choice.weight, "probability": choice.probability}
        span = self.span(choice.op)
        if span is not None:
            low, high = choice.range
            ranged = isinstance(choice.magnitude, tuple)
            values = [_tidy(span.value(low)), _tidy(span.value(high))]
            written["magnitude"] = [low, high] if ranged else low
            written["value"] = values if ranged else values[0]
            written["unit"] = span.unit
        if choice.sign is not None:
            written["sign"] = choice.sign
        return written

    def to_json(self) -> str:
        """The text of the policy file."""
        return json.dumps({**self._content(), "hash": self.hash}, indent=1, allow_nan=False) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON file; either the whole file is there afterwards or the old one still is."""
        path = Path(path)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(self.to_json(), encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            raise PolicyError(f"the policy could not be written to {str(path)!r}: {reason(error)}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy file; one that is damaged, or was changed without its hash, is refused."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise PolicyError(f"the policy file {str(path)!r} could not be read: {reason}") from error
        try:
            return cls.from_json(text)
        except PolicyError as error:
            raise PolicyError(f"{str(path)!r}: {error}") from error

    @classmethod
    def from_json(cls, text: str) -> Policy:
        """The policy in the text of a policy file."""
        try:
            content = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise PolicyError(f"not a complete JSON document: {error}") from error
        return _read(content)

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
        from fasteraa.policy.words import describe

        return describe(self)

    def transform(self, pool: Any = None, mask_fill: int = 0) -> PolicyTransform:
        """A torchvision v2 transform; `pool` holds the partners of sample_pairing for single images, `mask_fill` is
        what masks get from outside the image.
        """
        from fasteraa.policy.transform import PolicyTransform

        return PolicyTransform(self, pool=pool, mask_fill=mask_fill)

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

        On a GPU Triton kernels do it where they can (`kernels=False`: never; `kernels=True`: or fail), with the same
        result. With `normalise`, a mean and a standard deviation in [0, 1] for each channel, the images come out as
        float32, ready for a network.
        """
        from fasteraa.policy.apply import augment

        return augment(self, batch, generator, kernels=kernels, normalise=normalise)

    def recorded(
        self,
        batch: Tensor,
        generator: Generator | None = None,
        *,
        kernels: bool | None = None,
        normalise: tuple[Sequence[float], Sequence[float]] | None = None,
    ) -> RecordedPolicy:
        """A function that augments batches of this batch's shape as the policy itself would, draw by draw.

        On a GPU it was recorded in a CUDA graph, so that a call costs the host one launch and not a dozen; elsewhere
        it calls the policy. The generator is given here, on the batch's device, and used by every call.
        """
        from fasteraa.policy.recorded import RecordedPolicy

        return RecordedPolicy(self, batch, generator, kernels=kernels, normalise=normalise)


def _scale(choice: Choice, strength: Strength) -> Choice:
    probability = min(1.0, choice.probability * strength.probability)
    if choice.magnitude is None:
        return replace(choice, probability=probability)
    low, high = (min(1.0, end * strength.magnitude) for end in choice.range)
    return replace(choice, probability=probability, magnitude=(low, high))


def _written(strength: Strength) -> dict[str, Any]:
    return {
        "passes": list(strength.passes),
        "magnitude": strength.magnitude,
        "probability": strength.probability,
    }


def _check_unit(what: str, number: Any, op: str) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= 1:
        raise PolicyError(f"{what} must be in [0, 1], got {number!r} for op {op!r}")


def _check_weight(weight: Any, where: str) -> None:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise PolicyError(f"weight must be a finite number of at least 0, got {weight!r} for {where}")


def check_colour(what: str, colour: Any) -> tuple[int, int, int]:
    if not isinstance(colour, list | tuple) or len(colour) != 3:
        raise PolicyError(f"{what} must be three levels in 0..255, got {colour!r}")
    if not all(isinstance(level, int) and not isinstance(level, bool) and 0 <= level <= 255 for level in colour):
        raise PolicyError(f"{what} must be three levels in 0..255, got {colour!r}")
    return colour[0], colour[1], colour[2]


# --- reading a document somebody may have damaged --------------------------------------------------------------

_TOP = {
    "$schema", "format", "version", "name", "semantics", "interpolation", "fill", "hole_fill", "spans",
    "sub_policies", "strength", "provenance", "hash",
}  # fmt: skip
_SUB = {"weight", "stages"}
_CHOICE = {"op", "weight", "probability", "magnitude", "value", "unit", "sign"}
_SPAN = {"at_zero", "at_one", "unit"}
_STRENGTH = {"passes", "magnitude", "probability"}


def _read(content: Any) -> Policy:
    _expect_object(content, "a policy")
    if content.get("format") != FORMAT:
        raise PolicyError(f"this is no policy file: its 'format' must be {FORMAT!r}, got {content.get('format')!r}")
    if content.get("version") != VERSION:
        raise PolicyError(f"unknown version {content.get('version')!r} of the policy format; choices: {VERSION}")
    _expect_keys(content, _TOP, {"sub_policies"}, "a policy")
    for key, known in (("semantics", "pillow-uint8"), ("interpolation", "nearest")):
        if content.get(key, known) != known:
            raise PolicyError(f"unknown {key} {content[key]!r}; choices: {known}")
    spans = {name: _read_span(name, span) for name, span in _expect_object(content.get("spans", {}), "'spans'").items()}
    policy = Policy(
        sub_policies=tuple(
            _read_sub(sub, number)
            for number, sub in enumerate(_expect_list(content["sub_policies"], "'sub_policies'"), 1)
        ),
        name=str(content.get("name", "policy")),
        spans=spans,
        fill=content.get("fill", (0, 0, 0)),
        hole_fill=content.get("hole_fill", (125, 123, 114)),
        provenance=_expect_object(content.get("provenance", {}), "'provenance'"),
        strength=_read_strength(content.get("strength", {})),
    )
    _check_values(policy, content)
    if content.get("hash", policy.hash) != policy.hash:
        raise PolicyError(
            f"the content does not match its hash ({policy.hash} against {content['hash']}): the file was changed; "
            "remove the line with 'hash' to accept it as it is"
        )
    return policy


def _read_span(name: str, span: Any) -> Span:
    _expect_keys(_expect_object(span, f"the span of {name!r}"), _SPAN, _SPAN, f"the span of {name!r}")
    for key in ("at_zero", "at_one"):
        if isinstance(span[key], bool) or not isinstance(span[key], int | float):
            raise PolicyError(f"{key} must be a number, got {span[key]!r} in the span of {name!r}")
    return Span(**span)


def _read_strength(strength: Any) -> Strength:
    _expect_keys(_expect_object(strength, "'strength'"), _STRENGTH, set(), "'strength'")
    given = dict(strength)
    if "passes" in given:
        given["passes"] = tuple(_expect_list(given["passes"], "'passes'"))
    return Strength(**given)


def _read_sub(sub: Any, number: int) -> SubPolicy:
    where = f"sub-policy {number}"
    _expect_keys(_expect_object(sub, where), _SUB, {"stages"}, where)
    stages = [
        tuple(_read_choice(choice, f"{where}, stage {k}") for choice in _expect_list(stage, f"{where}, stage {k}"))
        for k, stage in enumerate(_expect_list(sub["stages"], f"the stages of {where}"), 1)
    ]
    try:
        return SubPolicy(tuple(stages), sub.get("weight", 1.0))
    except PolicyError as error:
        raise PolicyError(f"{error} ({where})") from error


def _read_choice(choice: Any, where: str) -> Choice:
    _expect_keys(_expect_object(choice, where), _CHOICE, {"op"}, where)
    if not isinstance(choice["op"], str):
        raise PolicyError(f"'op' must be the name of an operation, got {choice['op']!r} ({where})")
    magnitude = choice.get("magnitude")
    arguments = {key: choice[key] for key in ("weight", "probability", "sign") if key in choice}
    try:
        return Choice(
            choice["op"], magnitude=tuple(magnitude) if isinstance(magnitude, list) else magnitude, **arguments
        )
    except PolicyError as error:
        raise PolicyError(f"{error} ({where})") from error


def _check_values(policy: Policy, content: dict[str, Any]) -> None:
    """Physical values are written for the reader; where they are given they must agree with the unit magnitudes."""
    for number, (sub, written_sub) in enumerate(zip(policy.sub_policies, content["sub_policies"], strict=True), 1):
        for k, (stage, written_stage) in enumerate(zip(sub.stages, written_sub["stages"], strict=True), 1):
            for choice, written in zip(stage, written_stage, strict=True):
                meant = policy._choice(choice)
                for key in ("value", "unit"):
                    if written.get(key, meant.get(key)) != meant.get(key):
                        raise PolicyError(
                            f"{key} {written[key]!r} contradicts magnitude {written.get('magnitude')!r}, which means "
                            f"{meant.get(key)!r}, for op {choice.op!r} (sub-policy {number}, stage {k})"
                        )


def _expect_object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PolicyError(f"{what} must be an object, got {type(value).__name__}")
    return value


def _expect_list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise PolicyError(f"{what} must be a list, got {type(value).__name__}")
    return value


def _expect_keys(value: dict[str, Any], known: set[str], needed: set[str], where: str) -> None:
    for key in value:
        if key not in known:
            raise PolicyError(f"unknown key {key!r} in {where}: {choices_hint(key, sorted(known))}")
    for key in sorted(needed):
        if key not in value:
            raise PolicyError(f"the key {key!r} is missing in {where}")
