"""The command line: parse, call the same public function as from Python, print."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

_COMPLETION = "_FASTERAA_COMPLETE"
_SIGNALS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}  # and who handles them usually
if hasattr(signal, "SIGHUP"):  # a terminal that is closed
    _SIGNALS[signal.SIGHUP] = signal.SIG_DFL


def main() -> None:
    """Run the command and exit.

    A user's mistake ends with one line and exit code 2, a signal with one line and 128 + its number; neither ends
    with a traceback.
    """
    caught = _catch_signals()
    if sys.stdout is None:  # closed by who started it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        _run(sys.argv[1:])
        sys.stdout.flush()  # a full disk or a closed pipe is noticed here, not while Python ends
        code = 0
    except BaseException as error:
        code = _explain(error, caught)
    for number in _SIGNALS:  # all is said and done: nothing is left to stop
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _run(words: list[str]) -> None:
    import typer

    from fasteraa.cli.app import app
    from fasteraa.cli.errors import is_usage_error, refuse_empty_paths, usage_error
    from fasteraa.errors import ConfigError
    from fasteraa.runtime.ranks import launched

    if _COMPLETION in os.environ:  # a shell asks what may stand after the words typed so far
        app(prog_name="fasteraa")
    command = typer.main.get_command(app)
    refuse_empty_paths(words)
    if launched() and words[:1] not in (["search"], ["compare"], ["evaluate"]):
        raise ConfigError(
            "torchrun shares a search, or each training of compare and evaluate, among its ranks (torchrun ... -m "
            "fasteraa search); start every other command without it"
        )
    try:
        with command.make_context("fasteraa", list(words)) as context:
            command.invoke(context)
    except typer.Exit as end:  # --help, --version
        sys.exit(end.exit_code)
    except Exception as error:
        if not is_usage_error(error):
            raise
        raise usage_error(error, command, words) from error


def _explain(error: BaseException, caught: list[signal.Signals]) -> int:
    """Say what happened in one line and return the exit code; what is nobody's mistake but ours is raised again."""
    from fasteraa.errors import ClusterLost, FasterAAError, Stopped

    if isinstance(error, Stopped):
        return _say(error, error.exit_code)
    if caught:  # as KeyboardInterrupt, or as the error that an interrupted import made of it
        _say(f"stopped by {caught[0].name} before it was done", 128 + caught[0])
        os._exit(128 + caught[0])  # at once: threads that still decode images would be waited for
    if isinstance(error, ClusterLost):
        sys.stdout.flush()
        os._exit(_say(error, 2))
    if isinstance(error, FasterAAError):
        return _say(error, 2)
    if isinstance(error, OSError):
        parts = [error.strerror or error, error.filename]
        if error.filename is None and not isinstance(error, BrokenPipeError) and _stdout_fails():
            parts = ["standard output could not be written", error.strerror]
        # Python's last flush would fail once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # its reader has seen enough
            return 1
        return _say(": ".join(str(part) for part in parts if part), 2)
    from fasteraa.runtime.packages import torchvision_trouble

    if (trouble := torchvision_trouble(error)) is not None:
        return _say(trouble, 2)
    raise error


def _stdout_fails() -> bool:
    """An error without a file's name may be its own: then it does not take an empty line either."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _say(what: object, code: int) -> int:
    """In one line, fit for a terminal: names in it may be a stranger's. Of torchrun's ranks one says it."""
    from fasteraa.errors import RankLost
    from fasteraa.runtime.documents import printable, with_flags
    from fasteraa.runtime.ranks import own_rank

    if own_rank() != (what.told_by if isinstance(what, RankLost) else 0):
        return code
    with suppress(OSError):  # of a terminal that is closed
        print("fasteraa:", printable(with_flags(" ".join(str(what).split()))), file=sys.stderr)
    return code


def _catch_signals() -> list[signal.Signals]:
    """These signals become KeyboardInterrupt, and are noted; one that is ignored (nohup) stays so."""
    caught: list[signal.Signals] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(signal.Signals(number))
        raise KeyboardInterrupt(caught[-1])  # with its number, which the exit code shows

    for number, usual in _SIGNALS.items():
        if signal.getsignal(number) is usual:
            signal.signal(number, note)
    return caught
