"""The search space of the black-box methods, declared once: AutoAugment's, as whole numbers.

A policy has five sub-policies of two operations; each operation has a probability in 11 steps and a magnitude in 10.
Written down, that is a code of 30 whole numbers: operation, probability, magnitude, ten times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from fasteraa.errors import ConfigError
from fasteraa.methods.config import SearchConfig
from fasteraa.ops import Span, find, select
from fasteraa.policy.policy import Choice, Policy, SubPolicy

PROBABILITIES, MAGNITUDES = 11, 10  # steps from 0 to 1, both ends among them
PARTS = ("op", "probability", "magnitude")  # of an operation's place in a code
Code = tuple[int, ...]


@dataclass(frozen=True)
class Space:
    """Policies of these operations, and their codes."""

    ops: tuple[str, ...]
    sub_policies: int = 5
    operation_count: int = 2  # of a sub-policy, one after the other
    spans: Mapping[str, Span] = field(default_factory=dict)
    fill: tuple[int, int, int] = (0, 0, 0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values each number of a code has: 0 up to one less."""
        return (len(self.ops), PROBABILITIES, MAGNITUDES) * (self.sub_policies * self.operation_count)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the numbers of a code: sub-policy, place in it, part."""
        places = [(sub, place) for sub in range(self.sub_policies) for place in range(self.operation_count)]
        return tuple(f"{sub}.{place}.{part}" for sub, place in places for part in PARTS)

    def draw(self, rng: Random) -> Code:
        return tuple(rng.randrange(size) for size in self.sizes)

    def decode(self, code: Sequence[int], name: str = "policy") -> Policy:
        """The policy of a code. An operation without a magnitude leaves that number unused."""
        if len(code) != len(self.sizes) or not all(
            0 <= number < size for number, size in zip(code, self.sizes, strict=True)
        ):
            raise ConfigError(f"a code must be {len(self.sizes)} whole numbers below {self.sizes}, got {tuple(code)}")
        stages = [(self._choice(*code[first : first + 3]),) for first in range(0, len(code), 3)]
        subs = [
            SubPolicy(tuple(stages[first : first + self.operation_count]))
            for first in range(0, len(stages), self.operation_count)
        ]
        ops = {choice.op for (choice,) in stages}
        spans = {op: span for op, span in self.spans.items() if op in ops}
        return Policy(tuple(subs), name, spans, self.fill)

    def encode(self, policy: Policy) -> Code:
        """The code of a policy of this space; unused magnitudes are 0."""
        code = tuple(number for choice in policy.choices() for number in self._numbers(choice))
        if len(code) != len(self.sizes) or -1 in code or self.decode(code).hash != policy.hash:
            raise ConfigError(f"the policy {policy.name!r} is not one of this search space: {self}")
        return code

    def _choice(self, op: int, probability: int, magnitude: int) -> Choice:
        name = self.ops[op]
        strength = magnitude / (MAGNITUDES - 1) if find(name).span else None
        return Choice(name, probability / (PROBABILITIES - 1), strength)

    def _numbers(self, choice: Choice) -> Iterator[int]:
        yield self.ops.index(choice.op) if choice.op in self.ops else -1
        yield round(choice.probability * (PROBABILITIES - 1))
        yield round(choice.range[1] * (MAGNITUDES - 1))


def operations_to_test(ops: Sequence[str] | None, sample_pairing: bool = True) -> list[str]:
    """Not the flip: trainings flip as their recipe says. Nor `sample_pairing` if it is False, unless ops were named."""
    left_out = {"flip"} if sample_pairing or ops is not None else {"flip", "sample_pairing"}
    return [row.name for row in select(ops) if row.name not in left_out]


def space_of(config: SearchConfig, sample_pairing: bool = True) -> Space | None:
    """Of the operations of a search, less the flip, which trainings do by themselves; None if none is left."""
    ops = operations_to_test(config.ops, sample_pairing)
    return Space(tuple(ops), spans=config.spans, fill=config.fill) if ops else None


def concatenated(policies: Sequence[Policy], name: str) -> Policy:
    """One policy with the sub-policies of all: an image passes through one of any of them."""
    first = policies[0]
    subs = tuple(sub for policy in policies for sub in policy.sub_policies)
    spans = {op: span for policy in policies for op, span in policy.spans.items()}
    return Policy(subs, name, spans, first.fill, first.hole_fill)
