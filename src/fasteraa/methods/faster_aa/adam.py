"""Adam, without the compiler that comes along with torch.optim."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_EPS = 1e-8
_AVERAGES = ("exp_avg", "exp_avg_sq")


class Adam:
    """`torch.optim.Adam` by its fused kernel, with the same state and the names that a step needs.

    The first call of any of torch's optimisers imports torch._dynamo, which takes longer than a search on few images.
    The count of steps lies on the device of the parameters, so that a captured step can be replayed.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float, betas: tuple[float, float]):
        self.defaults: dict[str, Any] = {"lr": rate, "betas": betas}
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), **self.defaults}]
        self.state: dict[Tensor, dict[str, Tensor]] = {parameter: {} for parameter in self._parameters}
        self._slow: set[Tensor] = set()
        self._share = 1.0

    def slow_down(self, parameters: Iterable[nn.Parameter], share: float) -> None:
        """These move by a share of the learning rate."""
        self._slow, self._share = set(parameters), share

    @property
    def _parameters(self) -> list[nn.Parameter]:
        parameters: list[nn.Parameter] = self.param_groups[0]["params"]
        return parameters

    @property
    def gradients(self) -> list[Tensor]:
        """Those that there are."""
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        moved: list[Tensor] = [parameter for parameter in self._parameters if parameter.grad is not None]
        for slow, share in ((False, 1.0), (True, self._share)):
            some = [parameter for parameter in moved if (parameter in self._slow) == slow]
            if some:
                self._move(some, share)

    def _move(self, moved: list[Tensor], share: float) -> None:
        for parameter in moved:
            if not self.state[parameter]:
                self._begin(parameter)
        gradients = [_like(parameter, parameter.grad) for parameter in moved if parameter.grad is not None]
        steps, averages, squares = (
            [self.state[parameter][name] for parameter in moved] for name in ("step", *_AVERAGES)
        )
        group = self.param_groups[0]
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            moved, gradients, averages, squares, [], steps, lr=share * group["lr"], beta1=group["betas"][0],
            beta2=group["betas"][1], weight_decay=0.0, eps=_EPS, amsgrad=False, maximize=False,
        )  # fmt: skip

    def _begin(self, parameter: Tensor) -> None:
        nothing = {name: torch.zeros_like(parameter, memory_format=torch.preserve_format) for name in _AVERAGES}
        self.state[parameter] = {"step": torch.zeros((), device=parameter.device), **nothing}

    def state_dict(self) -> dict[str, Any]:
        """By the number of the parameter, as torch's optimisers write it."""
        states = {number: self.state[parameter] for number, parameter in enumerate(self._parameters)}
        group = {"params": list(states), **self.defaults}
        return {"state": {number: state for number, state in states.items() if state}, "param_groups": [group]}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        for number, parameter in enumerate(self._parameters):
            self.state[parameter] = {}
            if number in saved["state"]:
                self._begin(parameter)
                mine, theirs = self.state[parameter], saved["state"][number]
                if {name: value.shape for name, value in mine.items()} != {n: v.shape for n, v in theirs.items()}:
                    raise ValueError(f"the averages of parameter {number} do not fit")
                for name, value in theirs.items():
                    mine[name].copy_(value)


def _like(parameter: Tensor, gradient: Tensor) -> Tensor:
    """Laid out in memory as the parameter: the fused kernel takes for granted that they are alike."""
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)
