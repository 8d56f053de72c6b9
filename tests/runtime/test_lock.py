"""A folder is for one process at a time."""

import errno
import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from types import ModuleType

import pytest

import fasteraa
from fasteraa.errors import RunError
from fasteraa.runtime import lock
from fasteraa.runtime.lock import LOCK, exclusive

HOLD = """
import sys
from pathlib import Path
from fasteraa.runtime.lock import exclusive
with exclusive(Path(sys.argv[1])):
    print("inside", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(lock, "_PATIENCE_S", 0.0)


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
        pytest.raises(RunError, match=r"another process is at work in the folder '.*': wait for it, or choose another"),
        exclusive(tmp_path),
    ):
        pass


def test_search_race_and_compare_ask(other, tmp_path):
    for run in (
        lambda: fasteraa.search(None, out=tmp_path, device="cpu"),
        lambda: fasteraa.race("none,cutout", None, out=tmp_path, device="cpu"),
        lambda: fasteraa.compare(None, "none", out=tmp_path, device="cpu", subset=20),
    ):
        with pytest.raises(RunError, match="is at work in the folder"):
            run()
    assert not (tmp_path / "config.toml").exists()
    assert not (tmp_path / "policy.json").exists()


def test_threads_of_one_process_keep_each_other_out(tmp_path):
    refused = []

    def second():
        with pytest.raises(RunError) as error, exclusive(tmp_path):
            pass
        refused.append(error.value)

    with exclusive(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert len(refused) == 1


def test_whoever_leaves_lets_the_next_one_in(tmp_path):
    for _ in range(2):
        with exclusive(tmp_path):
            pass
    with pytest.raises(ValueError, match="of the work"), exclusive(tmp_path):
        raise ValueError("of the work")
    with exclusive(tmp_path):
        pass


def test_a_process_that_was_killed_keeps_nobody_out(other, tmp_path):
    other.kill()
    other.wait()
    assert (tmp_path / LOCK).exists()
    with exclusive(tmp_path):
        pass


def _killed_with_a_worker(folder, seconds):
    with exclusive(folder):
        if os.fork() == 0:
            time.sleep(seconds)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_workers_of_a_process_that_was_killed_are_waited_for(tmp_path, monkeypatch):
    """They may still be writing."""
    process = multiprocessing.get_context("fork").Process(target=_killed_with_a_worker, args=(tmp_path, 1.5))
    process.start()
    process.join()
    with pytest.raises(RunError, match="is at work in the folder"), exclusive(tmp_path):
        pass
    monkeypatch.setattr(lock, "_PATIENCE_S", 10.0)
    with exclusive(tmp_path):
        pass


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOLCK])
def test_where_there_are_no_locks_nobody_is_kept_out(tmp_path, monkeypatch, number):
    fcntl = pytest.importorskip("fcntl")

    def refuse(*given):
        raise OSError(number, "not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with exclusive(tmp_path), exclusive(tmp_path):
        pass
    with exclusive(tmp_path / "nowhere"):  # who writes there first says so
        pass


def test_an_older_filelock_locks_as_well(other, tmp_path, monkeypatch):
    pytest.importorskip("fcntl")
    monkeypatch.setitem(sys.modules, "filelock", ModuleType("filelock"))
    spec = importlib.util.spec_from_file_location("older_lock", lock.__file__)
    older = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(older)
    monkeypatch.setattr(older, "_PATIENCE_S", 0.0)
    with pytest.raises(RunError, match="is at work in the folder"), older.exclusive(tmp_path):
        pass
    other.kill()
    other.wait()
    with older.exclusive(tmp_path), pytest.raises(RunError), exclusive(tmp_path):
        pass
    with exclusive(tmp_path):
        pass


def test_work_that_fails_leaves_no_lock_file_that_was_not_there(tmp_path):
    with pytest.raises(KeyboardInterrupt), exclusive(tmp_path):
        raise KeyboardInterrupt
    assert not (tmp_path / LOCK).exists()
    with exclusive(tmp_path):
        pass
    with pytest.raises(ValueError, match="of the work"), exclusive(tmp_path):
        raise ValueError("of the work")
    assert (tmp_path / LOCK).exists()


def test_who_waited_for_a_lock_file_that_was_removed_locks_the_next_one(other, tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_PATIENCE_S", 10.0)
    first = threading.Timer(0.3, lambda: ((tmp_path / LOCK).unlink(), other.kill()))
    first.start()
    with exclusive(tmp_path):
        monkeypatch.setattr(lock, "_PATIENCE_S", 0.0)
        with pytest.raises(RunError, match="is at work in the folder"), exclusive(tmp_path):
            pass
    first.join()
