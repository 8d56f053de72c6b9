"""Processes end with the one that began them, also if that was killed before they had started."""

import os
import signal
import subprocess
import sys
import time

import pytest

# begins a process that writes its number and, once it was told to, watches its parent
SCRIPT = """
import multiprocessing, os, sys, time

def child(folder):
    with open(folder + "/pid.part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(folder + "/pid.part", folder + "/pid")
    while not os.path.exists(folder + "/go"):
        time.sleep(0.01)
    from fasteraa.runtime.processes import end_with_parent
    end_with_parent()
    open(folder + "/watching", "w").close()
    time.sleep(600)

if __name__ == "__main__":
    multiprocessing.get_context(sys.argv[2]).Process(target=child, args=(sys.argv[1],)).start()
    time.sleep(600)
"""


def wait_until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"  # ended, and nobody asks for it
    except FileNotFoundError:
        return True


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
@pytest.mark.parametrize("early", [True, False], ids=["while it starts", "later"])
@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_a_process_ends_with_its_parent(tmp_path, how, early):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path), how])
    try:
        wait_until((tmp_path / "pid").exists)
        pid = int((tmp_path / "pid").read_text())
        if not early:
            (tmp_path / "go").touch()
            wait_until((tmp_path / "watching").exists)
            assert not is_gone(pid)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    (tmp_path / "go").touch()
    wait_until(lambda: is_gone(pid))
