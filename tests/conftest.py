import os
import signal
import sys

import pytest
import torch

torch.set_num_threads(1)  # deterministic sums, and two workers do not fight for two cores
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run here too; read when their module is imported


@pytest.fixture(autouse=True)
def _signals():
    """Commands that a test starts must not inherit what a shell in the background, or a test before, ignores."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def fasteraa(monkeypatch, capsys):
    """Runs a command in this process: (exit code, stdout, stderr)."""
    from fasteraa.cli import main

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fasteraa", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())

    return run


def pytest_collection_modifyitems(items):
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.expensive)
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
