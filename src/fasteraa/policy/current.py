"""Where a training stands, for a policy with a schedule: set by `set_epoch`, seen by the workers of a loader, too."""

from __future__ import annotations

import math
import warnings
from typing import Any, Self

import torch
from torch import Tensor

from fasteraa.errors import PolicyError
from fasteraa.policy.draw import Plan, plan_of
from fasteraa.policy.policy import Policy
from fasteraa.policy.schedule import share_of


class CurrentPlan:
    """The plan of a policy at the epoch that a training has reached; until then, that of the last part.

    The epoch lies in memory that processes share, so that workers which a loader forked or spawned, also those that
    live longer than an epoch, see what `set_epoch` says in the process that trains. A copy has an epoch of its own.
    """

    def __init__(self, policy: Policy, epochs: int | None = None):
        self.policy, self.epochs = policy, epochs
        if epochs is not None:
            share_of(0, epochs)  # which checks it
        # without a schedule nothing is shared: every loader would need a file more
        self._share: Tensor | None = None
        if policy.scheduled:
            self._share = torch.tensor([math.nan], dtype=torch.float64).share_memory_()  # type: ignore[no-untyped-call]
        self._warned = False

    def set_epoch(self, epoch: int, epochs: int | None = None) -> None:
        """The epoch that begins, counted from 0, of a training of `epochs`."""
        epochs = self.epochs if epochs is None else epochs
        if epochs is None and not self.policy.scheduled:
            epochs = 1
        if epochs is None:
            raise PolicyError(
                "a policy with a schedule must know how long the training is: transform(epochs=200), or "
                "set_epoch(epoch, 200)"
            )
        share = share_of(epoch, epochs)
        if self._share is not None:
            self._share.fill_(share)

    @property
    def plan(self) -> Plan:
        if self._share is None:
            return plan_of(self.policy)
        share = float(self._share)
        if math.isnan(share):
            self._warn()
            return plan_of(self.policy)
        return plan_of(self.policy.at_share(share))

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"the policy {self.policy.name!r} has a schedule: tell its transform set_epoch(epoch) at the beginning "
                "of every epoch; until then its last part applies",
                stacklevel=4,
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self)(self.policy, self.epochs)
        if twin._share is not None and self._share is not None:
            twin._share.copy_(self._share)
        return twin
