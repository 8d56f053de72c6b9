"""Commands in this process: a new one takes seconds to import torch, which mistakes in words do not need."""

import signal
import sys
from types import SimpleNamespace

import pytest

from fasteraa import cli


@pytest.fixture
def inside(capsys, monkeypatch):
    """A command as `fasteraa` runs it; the handlers of signals are put back afterwards."""

    def run(*arguments, cwd=None):
        if cwd is not None:
            monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["fasteraa", *map(str, arguments)])
        handlers = {number: signal.getsignal(number) for number in cli._SIGNALS}
        try:
            with pytest.raises(SystemExit) as end:
                cli.main()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        said = capsys.readouterr()
        return SimpleNamespace(returncode=end.value.code, stdout=said.out, stderr=said.err)

    return run
