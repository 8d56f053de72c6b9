"""A folder is for one process at a time."""

import subprocess
import sys

import pytest
from fasteraa.comparison.compare import compare

from fasteraa.errors import RunError
from fasteraa.methods.faster_aa.run import search
from fasteraa.runtime import lock
from fasteraa.runtime.lock import LOCK, exclusive

pytestmark = pytest.mark.skipif(lock.fcntl is None, reason="this system has no locks")
HOLD = """
import sys
from pathlib import Path
from fasteraa.runtime.lock import exclusive
with exclusive(Path(sys.argv[1])):
    print("inside", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """A process that works in the folder."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "inside\n"
    yield process
    process.kill()
    process.communicate()


def test_the_second_process_is_refused(other, tmp_path):
    with (
        pytest.raises(RunError, match=rf"another process \({other.pid}\) is at work in the folder"),
        exclusive(tmp_path),
    ):
        pass


def test_search_and_compare_ask(other, tmp_path):
    with pytest.raises(RunError, match="is at work in the folder"):
        search(None, out=tmp_path, device="cpu")
    with pytest.raises(RunError, match="is at work in the folder"):
        compare(None, "none", out=tmp_path, device="cpu", subset=20)
    assert not (tmp_path / "config.toml").exists()


def test_a_process_that_was_killed_keeps_nobody_out(other, tmp_path):
    other.kill()
    other.wait()
    assert (tmp_path / LOCK).exists()
    with exclusive(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


def test_where_there_are_no_locks_nobody_is_kept_out(tmp_path, monkeypatch):
    def refuse(*given):
        raise OSError(95, "not supported")

    with exclusive(tmp_path / "nowhere"):
        pass
    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with exclusive(tmp_path):
        pass
    monkeypatch.setattr(lock, "fcntl", None)
    with exclusive(tmp_path):
        pass


def test_a_lock_that_was_removed_meanwhile_is_no_lock(tmp_path, monkeypatch):
    """Its owner removes it when it is done: whoever opened it before must look again."""
    locked, plain = [], lock.fcntl.flock

    def late(file, how):
        plain(file, how)
        if not locked:
            (tmp_path / LOCK).unlink()
        locked.append(file)

    monkeypatch.setattr(lock.fcntl, "flock", late)
    with exclusive(tmp_path):
        assert (tmp_path / LOCK).exists()
    assert len(locked) == 2
