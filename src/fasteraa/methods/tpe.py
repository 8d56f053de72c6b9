"""Optuna's TPE over codes, in this process or in one of its own. It never imports torch, so that one starts soon.

A suggestion takes a tenth of a second and more, on a GPU far longer than to score it. So searches that go side by side
have a process each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from fasteraa.errors import RunError
from fasteraa.runtime.processes import end_with_parent, holding_interrupts, without_main

Code = tuple[int, ...]
_GRACE_S = 1.0  # for a process that is to end
CATEGORICAL = "op"  # at the end of the name of a number whose values have no order


class Tpe:
    """It draws by the seed of each trial, so that it continues as if it had not stopped."""

    def __init__(self, names: Sequence[str], sizes: Sequence[int]):
        import optuna

        self.optuna: Any = optuna
        kinds = optuna.distributions
        self.distributions = {
            name: kinds.CategoricalDistribution(range(size))
            if name.endswith(CATEGORICAL)
            else kinds.IntDistribution(0, size - 1)
            for name, size in zip(names, sizes, strict=True)
        }
        with self._quiet():
            self.study = optuna.create_study()  # towards less

    def know(self, trials: Iterable[tuple[Code, float]]) -> None:
        """Codes with their scores, from before."""
        for code, score in trials:
            params = dict(zip(self.distributions, code, strict=True))
            self.study.add_trial(
                self.optuna.trial.create_trial(params=params, distributions=self.distributions, value=score)
            )

    def ask(self, seed: int) -> Code:
        with self._quiet():
            # both are said: their defaults are others in Optuna 4 and 5
            self.study.sampler = self.optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
            self._asked = self.study.ask(self.distributions)
        return tuple(self._asked.params[name] for name in self.distributions)

    def tell(self, score: float) -> None:
        self.study.tell(self._asked, score)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Without its greetings, and without the warning that these options are new in Optuna 4."""
        before = self.optuna.logging.get_verbosity()
        self.optuna.logging.set_verbosity(self.optuna.logging.WARNING)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", self.optuna.exceptions.ExperimentalWarning)
                yield
        finally:
            self.optuna.logging.set_verbosity(before)


class Suggester(Protocol):
    """Asked for a code, it has one after a while; then it wants the score."""

    def know(self, trials: Sequence[tuple[Code, float]]) -> None: ...

    def ask(self, seed: int) -> None: ...

    def code(self) -> Code: ...

    def tell(self, score: float) -> None: ...


class Here:
    """TPE in this process."""

    def __init__(self, names: Sequence[str], sizes: Sequence[int]):
        self._tpe = Tpe(names, sizes)
        self.know, self.tell = self._tpe.know, self._tpe.tell

    def ask(self, seed: int) -> None:
        self._seed = seed

    def code(self) -> Code:
        return self._tpe.ask(self._seed)


class Apart:
    """TPE in a process of its own."""

    def __init__(self, names: Sequence[str], sizes: Sequence[int]):
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, list(names), list(sizes)), daemon=True)
        with holding_interrupts(), without_main():
            self._process.start()
        theirs.close()

    def know(self, trials: Sequence[tuple[Code, float]]) -> None:
        self._send(("know", list(trials)))

    def ask(self, seed: int) -> None:
        self._send(("ask", seed))

    def tell(self, score: float) -> None:
        self._send(("tell", score))

    def code(self) -> Code:
        try:
            return tuple(self.connection.recv())
        except (EOFError, OSError) as error:
            raise self._ended() from error

    def end(self) -> None:
        with suppress(OSError):
            self.connection.close()
        self._process.join(_GRACE_S)
        if self._process.is_alive():
            self._process.kill()

    def _send(self, message: tuple[str, Any]) -> None:
        try:
            self.connection.send(message)
        except OSError as error:
            raise self._ended() from error

    def _ended(self) -> RunError:
        return RunError("a process that suggests trials ended, perhaps for lack of memory: resume=True continues")


@contextmanager
def suggesters(names: Sequence[str], sizes: Sequence[int], count: int, apart: bool) -> Iterator[list[Suggester]]:
    """So many, each with a process of its own or all in this one."""
    with ExitStack() as stack:
        made: list[Suggester] = []
        for _ in range(count):
            if apart:
                made.append(one := Apart(names, sizes))
                stack.callback(one.end)
            else:
                made.append(Here(names, sizes))
        yield made


def ready(waiting: Collection[Suggester]) -> list[Suggester]:
    """Those whose code is there; waits for one."""
    apart = {each.connection: each for each in waiting if isinstance(each, Apart)}
    here = [each for each in waiting if not isinstance(each, Apart)]
    return here or [apart[connection] for connection in wait(list(apart)) if isinstance(connection, Connection)]


def _serve(connection: Connection, names: list[str], sizes: list[int]) -> None:
    """What is asked for, until nobody asks any more."""
    end_with_parent()
    tpe = Tpe(names, sizes)
    answers: dict[str, Callable[[Any], Any]] = {"know": tpe.know, "ask": tpe.ask, "tell": tpe.tell}
    with suppress(EOFError, OSError):
        while True:
            name, value = connection.recv()
            answer = answers[name](value)
            if name == "ask":
                connection.send(answer)
