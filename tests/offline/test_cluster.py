"""`fasteraa apply --engine ray`: first against a stand-in for Ray, then on a real cluster of two nodes (alone)."""

import itertools
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fasteraa.errors import ConfigError, RunError
from fasteraa.offline import cluster as module
from fasteraa.runtime import cluster as runtime_cluster

from .conftest import content


class Lost(Exception):
    """A worker, or its node."""


class TaskError(Lost):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class Reference:
    """Of what was put: the same to all who get it."""

    numbers = itertools.count()

    def __init__(self, value):
        self.value, self.number = pickle.dumps(value), next(self.numbers)

    def hex(self):
        return f"{self.number:x}"


class Call:
    def __init__(self, work, given):
        self.work, self.given = work, given


class Ray:
    """Runs a task when its result is asked for."""

    exceptions = SimpleNamespace(RayError=Lost, RayTaskError=TaskError)

    def __init__(self):
        self.cores, self.most, self.loses, self.cancelled = 2, 0, None, []

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address="head:1")

    def cluster_resources(self):
        return {"CPU": self.cores}

    def put(self, value):
        return Reference(value)

    def remote(self, num_cpus, max_retries):
        assert (num_cpus, max_retries) == (1, 2)
        return lambda work: SimpleNamespace(remote=lambda *given: Call(work, given))

    def wait(self, calls, num_returns, timeout):
        self.most = max(self.most, len(calls))
        return calls[:num_returns], calls[num_returns:]

    def get(self, what):
        if isinstance(what, Reference):
            return pickle.loads(what.value)
        if what.given[2] == self.loses:
            raise Lost("the node died")
        try:
            what.work(*what.given)
        except RunError as error:
            raise TaskError(error) from error
        return None

    def cancel(self, call, force):
        self.cancelled.append(call.given[2])

    def shutdown(self): ...


@pytest.fixture
def ray(monkeypatch):
    stand_in = Ray()
    monkeypatch.setattr(module, "connect", lambda address: (stand_in, True))
    monkeypatch.setattr("fasteraa.train.runner.ray.check_cluster", lambda address: None)
    monkeypatch.setattr(runtime_cluster, "answers", lambda address: True)
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    return stand_in


@pytest.mark.parametrize("format", ["shards", "folder"])
def test_the_same_bytes_as_from_processes(ray, make, photos, tmp_path, monkeypatch, format):
    make("processes", format=format)
    monkeypatch.chdir(tmp_path)
    make("cluster", format=format, engine="ray", source=photos.name, device="auto", workers=None)
    assert content(tmp_path / "cluster") == content(tmp_path / "processes")
    assert ray.most == 2


def test_as_many_at_once_as_there_are_workers(ray, make):
    ray.cores = 8
    make(engine="ray", workers=3)
    assert ray.most == 3


def test_a_shard_that_ends_its_workers_is_named_and_the_rest_is_kept(ray, make, tmp_path):
    make("whole")
    ray.loses = 3
    with pytest.raises(RunError, match="train-000003: 3 workers were lost while they made it"):
        make(engine="ray", workers=2)
    assert len(list((tmp_path / "out").glob("*.tar"))) == 3
    assert ray.cancelled == [4]
    make()  # without a cluster
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fingerprint": "other"}, r"the node \S+ has other images than the driver: all nodes need a common disk"),
        ({"folder": "/nowhere"}, r"the node \S+ does not see '/nowhere': all nodes need a common disk"),
        ({"versions": {**runtime_cluster.versions("pillow"), "pillow": "1"}}, "the same version of pillow"),
    ],
)
def test_a_node_that_would_make_something_else_makes_nothing(ray, make, tmp_path, monkeypatch, change, said):
    monkeypatch.setattr(module, "_put", lambda ray, order: ray.put(replace(order, **change)))
    with pytest.raises(RunError, match=said):
        make(engine="ray")
    assert not list((tmp_path / "out").glob("*.tar*"))


def test_a_node_without_the_folder_is_named(ray, make, monkeypatch):
    monkeypatch.setattr(module, "RECORDS", "nowhere")
    with pytest.raises(RunError, match=r"does not see the folder .*: all nodes need a common disk"):
        make(engine="ray")


def test_a_head_that_is_lost_is_named(ray, make, monkeypatch):
    monkeypatch.setattr(runtime_cluster, "answers", lambda address: False)
    for room in (module, runtime_cluster):
        monkeypatch.setattr(room, "POLL_S", 0.0)
    with pytest.raises(RunError, match="the head of the Ray cluster at head:1 does not answer any more"):
        make(engine="ray")


def test_a_cluster_that_is_not_there_is_said_first(make, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(ConfigError, match=r"there is no Ray at 127.0.0.1:1: give HOST:PORT"):
        make("made", engine="ray", address="127.0.0.1:1")
    assert not (tmp_path / "made").exists()


# --- a real cluster --------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.filterwarnings("ignore")
def test_two_nodes_a_killed_worker_and_a_killed_driver(make, photos, tmp_path, monkeypatch):
    """The bytes are those of one process, whatever ends."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    settings = {"copies": 40, "shard_size": 40, "size": 120}
    make("whole", **settings)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        out = tmp_path / "out"
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        words = [sys.executable, "-m", "fasteraa", "apply", photos.name, "--out", out.name, "--engine", "ray"]
        words += ["--address", cluster.address, "--policy", "trivialaugment-wide", *flags]

        def driver():
            return subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def wait_for(count):
            end = time.monotonic() + 120
            while len(list(out.glob("*.tar"))) < count:
                assert time.monotonic() < end
                time.sleep(0.01)

        first = driver()
        wait_for(1)
        workers = subprocess.run(["pgrep", "-f", "ray::_work"], capture_output=True, text=True).stdout.split()
        os.kill(int(workers[0]), signal.SIGKILL)
        wait_for(5)
        first.kill()
        assert "raylet" not in first.communicate()[0]  # what Ray has to say of it
        shards = out.glob("*.tar")
        finished = {
            path.name: path.stat().st_mtime_ns for path in shards if (out / f".tasks/{path.stem}.json").exists()
        }
        second = driver()
        said = second.communicate(timeout=240)[0]
        assert second.returncode == 0, said
        assert content(out) == content(tmp_path / "whole")
        assert all((out / name).stat().st_mtime_ns == date for name, date in finished.items())
        assert 4 <= len(finished) < 20
    finally:
        cluster.shutdown()
