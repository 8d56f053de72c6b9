"""The Ray runner: first against a stand-in for Ray, then on a real cluster of two nodes (alone)."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fasteraa.api import compare, search
from fasteraa.data.large import reporting
from fasteraa.errors import ConfigError, RunError
from fasteraa.runtime import cluster as cluster_module
from fasteraa.runtime.cluster import check_versions, versions
from fasteraa.testing.runners import SMALL, check_runner, small_jobs
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner import Engine, local
from fasteraa.train.runner import ray as module
from fasteraa.train.runner.local import LocalRunner
from fasteraa.train.runner.ray import RayRunner


@pytest.fixture(autouse=True)
def quick_estimates(monkeypatch):
    monkeypatch.setattr(local, "_MEASURED_S", 0.0)


# --- a stand-in: calls are done when they are asked for --------------------------------------------------------------


class Lost(Exception):
    """A worker, or its node."""


class TaskError(Lost):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class Call:
    def __init__(self, work):
        try:
            self.result, self.error = work(), None
        except Lost as error:
            self.result, self.error = None, error
        except Exception as error:
            self.result, self.error = None, TaskError(error)


class Actor:
    def __init__(self, ray, real):
        self.ray, self.real = ray, real

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *given: Call(lambda: self.ray.do(self, name, given)))


class Ray:
    """Loses a worker at every training whose seed is in `deadly`, as often as it says there; or a node with all."""

    exceptions = SimpleNamespace(RayError=Lost, RayTaskError=TaskError)

    def __init__(self, cores=2, deadly=None):
        self.cores, self.deadly = cores, Counter(deadly or {})
        self.calls, self.killed, self.puts = Counter(), 0, 0
        self.actors, self.dead, self.takes_all = [], [], False

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address="head:1")

    def cluster_resources(self):
        return {"CPU": self.cores}

    def remote(self, **resources):
        assert resources == {"num_cpus": 1, "max_restarts": 0}

        def make(kind):
            def remote(*given):
                self.actors.append(Actor(self, kind(*given)))
                return self.actors[-1]

            return SimpleNamespace(remote=remote)

        return make

    @property
    def made(self):
        return len(self.actors)

    def do(self, actor, name, given):
        self.calls[name] += 1
        if actor in self.dead:
            raise Lost("it died with its node")
        if name == "train":
            for job in given[1]:
                if self.deadly[job.seed] > 0:
                    self.deadly[job.seed] -= 1
                    self.dead += self.actors if self.takes_all else []
                    raise Lost("the node died")
        return getattr(actor.real, name)(*given)

    def put(self, value):
        self.puts += 1
        return value

    def wait(self, calls, num_returns, timeout):
        return calls[:num_returns], calls[num_returns:]

    def get(self, call):
        if call.error is not None:
            raise call.error
        return call.result

    def kill(self, actor):
        self.killed += 1

    def shutdown(self): ...


@pytest.fixture
def ray(monkeypatch):
    stand_in = Ray()
    monkeypatch.setattr(module, "connect", lambda address: (stand_in, True))
    monkeypatch.setattr(cluster_module, "answers", lambda address: True)
    return stand_in


def test_what_a_runner_must_do(ray):
    check_runner("ray")


def test_images_are_sent_once_and_actors_stay(ray, tmp_path):
    jobs = small_jobs()
    with RayRunner(RunCache(tmp_path).open()) as runner:
        runner.prepare([job.split for job in jobs])
        list(runner.run(jobs[:2]))
        list(runner.run(jobs[2:]))
    assert ray.made == 2
    assert ray.puts == 2  # two folds
    assert ray.calls["hold"] <= 4
    assert ray.calls["train"] == 4


def test_what_a_lost_worker_was_doing_is_done_again(ray, tmp_path):
    ray.deadly[0] = 2
    jobs, lines = small_jobs(), []
    with reporting(lines.append), RayRunner(RunCache(tmp_path).open()) as runner:
        outcomes = {job.key: outcome for job, outcome in runner.run(jobs)}
    assert lines == 2 * ["a worker of the Ray cluster was lost, its trainings run again: none, seed 0"]
    assert outcomes.keys() == {job.key for job in jobs}
    assert ray.calls["train"] == len(jobs) + 2  # nothing that was finished
    assert ray.made == 4


def test_a_node_that_is_lost_takes_idle_workers_with_it(ray, tmp_path):
    """The training that was on it is not what ended them."""
    ray.cores, ray.deadly[0], ray.takes_all = 6, 1, True
    with RayRunner(RunCache(tmp_path).open()) as runner:
        runner.prepare([])
        while len([worker for worker in runner._cluster.workers if worker.facts]) < 6:
            runner._cluster.finished([])
        assert len(list(runner.run(small_jobs()[:1]))) == 1
    assert ray.calls["train"] == 2


def test_a_training_that_ends_its_workers_is_named(ray, tmp_path):
    ray.deadly[1] = 99
    cache, jobs = RunCache(tmp_path).open(), small_jobs()
    with RayRunner(cache) as runner, pytest.raises(RunError, match="none, seed 1: 3 workers were lost"):
        list(runner.run(jobs))
    assert cache.read(jobs[0]) is not None


def test_nodes_that_join_get_actors(ray, tmp_path):
    with RayRunner(RunCache(tmp_path).open()) as runner:
        for _ in runner.run(small_jobs()):
            ray.cores = 3
    assert ray.made == 3


def test_versions_must_be_alike(ray, tmp_path, monkeypatch):
    check_versions(versions(), versions(), "n")
    with pytest.raises(RunError, match=r"same version of fasteraa: .* the node n has 0\.0"):
        check_versions(versions(), {**versions(), "fasteraa": "0.0"}, "n")


def test_an_error_of_a_training_is_told(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "train_group", lambda *given: (_ for _ in ()).throw(RunError("no memory")))
    with RayRunner(RunCache(tmp_path).open()) as runner, pytest.raises(RunError, match="no memory"):
        list(runner.run(small_jobs()))


def test_a_full_disk_on_a_node_is_one_line_and_loses_nothing(ray, tmp_path, monkeypatch):
    cache, jobs, real = RunCache(tmp_path).open(), small_jobs(), module.train_group

    def full(there, group, *given):
        if group[0].seed == 1:
            raise OSError(28, "No space left on device")
        return real(there, group, *given)

    monkeypatch.setattr(module, "train_group", full)
    said = r"^the node \S+ could not keep a checkpoint in .* \(No space left on device\): .* what was finished is kept"
    with RayRunner(cache) as runner, pytest.raises(RunError, match=said):
        list(runner.run(jobs))
    finished = [job for job in jobs if cache.read(job) is not None]
    assert finished
    monkeypatch.undo()
    with LocalRunner(cache, device="cpu", jobs=1) as runner:
        assert len(list(runner.run(jobs))) == len(jobs)


def test_a_head_that_is_lost_is_named(ray, tmp_path, monkeypatch):
    with RayRunner(RunCache(tmp_path).open()) as runner:
        runner.prepare([])
        monkeypatch.setattr(ray, "wait", lambda calls, num_returns, timeout: ([], calls))
        monkeypatch.setattr(cluster_module, "answers", lambda address: False)
        monkeypatch.setattr(module, "POLL_S", 0.0)
        monkeypatch.setattr(cluster_module, "POLL_S", 0.0)
        monkeypatch.setattr(ray, "cluster_resources", lambda: pytest.fail("this would wait for the head"))
        with pytest.raises(RunError, match="the head of the Ray cluster at head:1 does not answer any more"):
            list(runner.run(small_jobs()))


def test_bad_input_is_one_line(tmp_path, monkeypatch):
    cache = RunCache(tmp_path).open()
    with pytest.raises(ConfigError, match="--device takes auto, cpu or cuda, got 'cuda:1'"):
        RayRunner(cache, device="cuda:1")
    with pytest.raises(ConfigError, match="--address is for --engine ray, got --engine local"):
        Engine(address="auto")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs Ray: pip install 'fasteraa\[ray\]'"):
        RayRunner(cache).prepare([])


@pytest.mark.parametrize("has_ray", [True, False])
def test_a_cluster_that_is_not_there_is_said_before_images_are_read(tmp_path, monkeypatch, has_ray):
    """A search would tell after its gradient search."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False) if has_ray else None)
    for room in ("fasteraa.api.load", "fasteraa.comparison.setup.open_split"):
        monkeypatch.setattr(room, lambda *given, **more: pytest.fail("images were read first"))
    where = {"engine": "ray", "address": "127.0.0.1:1", "device": "cpu", "out": tmp_path / "out"}
    said = r"there is no Ray at 127.0.0.1:1: give HOST:PORT" if has_ray else r"needs Ray: pip install 'fasteraa\[ray\]'"
    for command in (search, compare):
        with pytest.raises(ConfigError, match=said):
            command(None, **where)
    assert not (tmp_path / "out").exists()


def test_an_engine_that_is_not_there_is_said_before_images_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("fasteraa.api.load", lambda *given, **more: pytest.fail("images were read first"))
    with pytest.raises(ConfigError, match="unknown runner 'rya'"):
        search(None, engine="rya", out=tmp_path / "out")


def test_a_cluster_without_gpus(ray, tmp_path):
    with pytest.raises(ConfigError, match="the Ray cluster at head:1 has no GPU"):
        RayRunner(RunCache(tmp_path).open(), device="cuda").prepare([])


# --- a real cluster --------------------------------------------------------------------------------------------------

DRIVER = """
import sys
from pathlib import Path
from fasteraa.cli import _explain
from fasteraa.errors import FasterAAError
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner.ray import RayRunner
sys.path.insert(0, {here!r})
from test_ray_runner import long_jobs

try:
    with RayRunner(RunCache(Path({folder!r})).open(), address={address!r}) as runner:
        for job, outcome in runner.run(long_jobs()):
            print(job.seed, flush=True)
except FasterAAError as error:
    sys.exit(_explain(error, []))
"""


def long_jobs(count=20):
    first, recipe = small_jobs()[0], replace(SMALL, epochs=300)
    return [replace(first, seed=seed, recipe=recipe) for seed in range(count)]


class TwoNodes:
    """A head with a core and a node with a core, on this machine."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        self.node = self.cluster.add_node(num_cpus=1)
        self.address, self.drivers = self.cluster.address, []

    def driver(self, folder):
        here = os.path.dirname(__file__)
        code = DRIVER.format(here=here, folder=str(folder), address=self.address)
        words = [sys.executable, "-c", code]
        self.drivers.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return self.drivers[-1]

    def close(self):
        for driver in self.drivers:
            driver.kill()
            driver.wait()
            driver.stdout.close()
        self.cluster.shutdown()


@pytest.fixture
def cluster(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else whatever runs beside the tests comes first
    nodes = TwoNodes()
    yield nodes
    nodes.close()


def read(driver, count):
    """The seeds of the next trainings that are finished; Ray says nothing of its own."""
    seeds = []
    while len(seeds) < count:
        line = driver.stdout.readline()
        assert line, f"the driver ended after {seeds}"
        assert line.strip().isdecimal(), line
        seeds.append(int(line))
    return seeds


def finished(folder):
    return {path.name: path.stat().st_mtime_ns for path in (folder / "runs").glob("*.json")}


def expected_losses(folder, jobs):
    torch.set_num_threads(1)
    with LocalRunner(RunCache(folder).open(), device="cpu", jobs=1) as runner:
        return {job.seed: outcome.loss for job, outcome in runner.run(jobs)}


def actors():
    """Processes that train, of the cluster on this machine."""
    found = subprocess.run(["pgrep", "-f", "ray::TrainingActor"], capture_output=True, text=True).stdout.split()
    return [int(pid) for pid in found]


@pytest.mark.alone
@pytest.mark.filterwarnings("ignore")
def test_a_real_cluster_does_what_a_runner_must(cluster):
    check_runner("ray", address=cluster.address)


@pytest.mark.alone
@pytest.mark.filterwarnings("ignore")
def test_killed_workers_nodes_drivers_and_heads(cluster, tmp_path):
    """Finished trainings are never run again, and in the end the numbers are those of the local runner."""
    folder = tmp_path / "run"
    first = cluster.driver(folder)
    seeds = read(first, 2)
    os.kill(actors()[0], signal.SIGKILL)  # a worker
    seeds += read(first, 2)
    cluster.cluster.remove_node(cluster.node, allow_graceful=False)  # a node
    seeds += read(first, 2)
    first.send_signal(signal.SIGKILL)  # the driver
    first.wait()
    before = finished(folder)
    assert len(before) >= 6
    assert len(set(seeds)) == 6
    second = cluster.driver(folder)
    seen = read(second, len(before) + 1)
    began = time.monotonic()
    cluster.cluster.remove_node(cluster.cluster.head_node, allow_graceful=False)  # the head
    said = second.communicate(timeout=120)[0]
    assert time.monotonic() - began < 60
    assert second.returncode == 2
    assert said.splitlines()[-1].startswith("fasteraa: the head of the Ray cluster at ")
    after = finished(folder)
    assert len(set(seen)) == len(before) + 1
    assert {name: after[name] for name in before} == before
    jobs = long_jobs()
    with LocalRunner(RunCache(folder).open(), device="cpu", jobs=1) as runner:  # continued without a cluster
        outcomes = {job.seed: outcome.loss for job, outcome in runner.run(jobs)}
    assert outcomes == expected_losses(tmp_path / "local", jobs)


@pytest.mark.alone
@pytest.mark.filterwarnings("ignore")
def test_a_node_that_joins_in_the_middle_gets_work(cluster, tmp_path):
    """And the numbers are those of the local runner."""
    folder = tmp_path / "run"
    driver = cluster.driver(folder)
    seeds = read(driver, 1)
    before = len(actors())
    cluster.cluster.add_node(num_cpus=1)
    while len(actors()) <= before:
        seeds += read(driver, 1)
    seeds += read(driver, len(long_jobs()) - len(seeds))
    assert before == 2
    assert sorted(seeds) == list(range(len(long_jobs())))
    assert driver.wait(120) == 0
    with LocalRunner(RunCache(folder).open(), device="cpu", jobs=1) as runner:
        outcomes = {job.seed: outcome.loss for job, outcome in runner.run(long_jobs())}
    assert outcomes == expected_losses(tmp_path / "local", long_jobs())


@pytest.mark.alone
@pytest.mark.filterwarnings("ignore")
def test_no_ray_there(tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=r"there is no Ray at 127.0.0.1:1: give HOST:PORT"):
        RayRunner(RunCache(tmp_path).open(), address="127.0.0.1:1").prepare([])
    with pytest.raises(ConfigError, match=r"there is no Ray on this machine \("):
        RayRunner(RunCache(tmp_path).open()).prepare([])
