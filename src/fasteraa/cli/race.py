"""`fasteraa race ... -- command`: policies judged by the user's own training."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from fasteraa.cli.echo import echo
from fasteraa.cli.errors import refuse_unused
from fasteraa.errors import ConfigError

if TYPE_CHECKING:
    from fasteraa.policy.policy import Policy

_WORDS = "fasteraa.command"  # where a context keeps what stands after --
_OF_COMMANDS = ("seeds", "to", "maximize", "run_minutes")  # flags for them alone
_OF_BOTH = ("policies", "out", "minutes", "race_minutes", "jobs", "resume", "json_")


class WithCommand(TyperCommand):
    """Everything after `--` is a command, not arguments of ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[_WORDS] = tuple(args[place + 1 :])
            args = args[:place]
        return super().parse_args(ctx, args)


def command_after(context: typer.Context) -> tuple[str, ...] | None:
    """The words after `--`, None where there is none. Flags for the other kind of race are refused."""
    words: tuple[str, ...] | None = context.meta.get(_WORDS)
    if words is None:
        refuse_unused(context, _OF_COMMANDS, "without a command after --")
        return None
    if context.params.get("source") is not None:
        raise ConfigError(f"a command (after --) reads its own images, got {context.params['source']!r}, too")
    idle = [name for name in context.params if name not in (*_OF_COMMANDS, *_OF_BOTH)]
    refuse_unused(context, idle, "on a command: give it to the command itself")
    return words


def race_command(
    words: tuple[str, ...],
    policies: str,
    out: Path,
    *,
    to: str,
    seeds: int,
    maximize: bool,
    run_minutes: float | None,
    minutes: float | None,
    race_minutes: float | None,
    jobs: int | None,
    json_: bool = False,
) -> None:
    from fasteraa.api import race
    from fasteraa.export import TARGETS
    from fasteraa.runtime.progress import Silent, for_this_terminal
    from fasteraa.runtime.run_folder import RunFolder
    from fasteraa.selection.config import RaceConfig
    from fasteraa.selection.score_race import ScoreResult
    from fasteraa.train.command import Command

    if to not in TARGETS:
        raise ConfigError(f"--to must be one of {', '.join(TARGETS)}, got {to!r}")
    if run_minutes is not None and not run_minutes > 0:
        raise ConfigError(f"--run-minutes must be above 0, got {run_minutes:g}")
    suffix = ".json" if to in ("json", "albumentations") else ".py"
    seconds = math.inf if run_minutes is None else 60 * run_minutes
    result = race(
        policies,
        train=Command(words, partial(_write, to), suffix=suffix, target=to, seconds=seconds),
        seeds=seeds,
        maximize=maximize,
        race=None if race_minutes is None else RaceConfig.make({"minutes": race_minutes}),
        minutes=minutes,
        out=out,
        jobs=jobs,
        progress=Silent() if json_ else for_this_terminal(),
    )
    assert isinstance(result, ScoreResult)
    if json_:
        echo(RunFolder(out).result.read_text(encoding="utf-8").rstrip())
        return
    echo(
        f"\n{result}\n\n"
        f"policy   {RunFolder(out).policy}      (python: fasteraa.load({str(out)!r}).transform())\n"
        f"summary  {RunFolder(out).summary}\n"
        f"runs     {out / 'scores'}      (each has its log.txt)"
    )


def _write(target: str, policy: Policy, path: Path) -> None:
    from fasteraa.export import write

    write(policy, target, path)
