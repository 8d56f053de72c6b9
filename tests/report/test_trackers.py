"""Trackers: what they are told, that none of them can stop a search, and what the real ones have kept."""

import dataclasses
import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import torch

import fasteraa as package
from fasteraa.data import ImageSet
from fasteraa.errors import ConfigError, RunError, Stopped
from fasteraa.methods.config import SearchConfig
from fasteraa.policy import Policy
from fasteraa.report.trackers import TRACKERS, track
from fasteraa.report.trackers.tracking import reason
from fasteraa.runtime.progress import Lines

KEY = "local-" + "5ec2e7" * 7  # of the form that W&B has for keys
PASSWORD = "hunter2hunter2"


@pytest.fixture
def tiny():
    images = torch.randint(256, (64, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return ImageSet.of(images, torch.arange(64) % 2, ("a", "b"), "noise")


@pytest.fixture
def quick():
    """The settings of a search that takes a second."""
    return SearchConfig(epochs=3, batch_size=16, sub_policies=2, ops=("flip", "invert", "brightness", "solarize"))


def search(data, config, **options):
    return package.search(data, config, methods="faster-aa", race=False, device="cpu", **options)


def gradient(result):
    """What the gradient search tells of its epochs."""
    return result.details["faster-aa"]


class Recorder:
    """Notes what it is told, and fails where it should."""

    def __init__(self, fails_at=None, name="recorder", then=lambda: None):
        self.name, self.fails_at, self.then = name, fails_at, then
        self.told = []

    def _note(self, what, *told):
        self.told.append((what, *told))
        if what == self.fails_at:
            raise RuntimeError(f"no answer from http://joe:{PASSWORD}@example.org to {what}")

    def start(self, opening):
        self._note("start", opening)
        return "in memory"

    def log(self, values, step):
        self._note("log", values, step)
        self.then()

    def finish(self, ending):
        self._note("finish", ending)

    @property
    def calls(self):
        return [told[0] for told in self.told]


def test_a_tracker_is_told_everything(tiny, quick, tmp_path):
    recorder = Recorder()
    with track(recorder, folder=tmp_path / "run", config=quick) as tracking:
        result = search(tiny, quick, out=tmp_path / "run", progress=tracking)
    assert recorder.calls == ["start", "log", "log", "log", "finish"]
    opening, ending = recorder.told[0][1], recorder.told[-1][1]
    assert (opening.name, opening.kind, opening.resume) == ("run", "search", False)
    assert opening.settings["epochs"] == 3
    assert opening.settings["ops"] == ["flip", "invert", "brightness", "solarize"]
    for told, epoch in zip(recorder.told[1:-1], gradient(result)["epochs"], strict=True):
        expected = dataclasses.asdict(epoch)
        number = expected.pop("epoch")
        assert told[1:] == ({f"search/{name}": value for name, value in expected.items()}, number)
    assert ending.status == "finished"
    assert {path.name for path in ending.files} == {
        "policy.json", "faster-aa.json", "start.json", "config.toml", "metrics.jsonl", "preview.png", "result.json",
        "summary.txt",
    }  # fmt: skip
    assert ending.summary["hash"] == result.policy.hash
    assert ending.summary["status"] == "finished"


@pytest.mark.parametrize("where", ["start", "log", "finish"])
def test_a_tracker_that_fails_is_left_out_and_the_search_continues(where, tiny, quick, tmp_path, caplog):
    broken, well = Recorder(where, "broken"), Recorder()
    with track(broken, well, folder=tmp_path / "run", config=quick) as tracking:
        result = search(tiny, quick, out=tmp_path / "run", progress=tracking)
    assert gradient(result)["finished"]
    assert broken.calls[-1] == where
    assert broken.calls.count(where) == 1  # and nothing more after it
    assert well.calls == ["start", "log", "log", "log", "finish"]
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"broken failed and is no longer used: no answer from http://***@example.org to {where}" in str(
        warning.getMessage()
    )


def interrupting():
    """One in whose first epoch somebody presses Ctrl-C."""
    return Recorder(then=lambda: signal.raise_signal(signal.SIGINT))


def test_a_signal_ends_trackers_well(tiny, quick, tmp_path):
    recorder = interrupting()
    with pytest.raises(Stopped), track(recorder, folder=tmp_path / "run", config=quick) as tracking:
        search(tiny, quick, out=tmp_path / "run", progress=tracking)
    assert recorder.calls == ["start", "log", "finish"]
    assert recorder.told[-1][1].status == "stopped"


def test_an_error_of_the_run_is_passed_on(tmp_path):
    recorder = Recorder()
    tracking = track(recorder, folder=tmp_path)
    tracking.begin({"a": 1})
    with pytest.raises(RunError, match="gone"), tracking:
        raise RunError("gone")
    assert recorder.told[0][1].settings == {"a": 1}
    assert recorder.told[-1][1].status == "failed"


def test_nothing_is_written_for_a_search_that_does_not_begin(tiny, quick, tmp_path):
    recorder = Recorder()
    (tmp_path / "config.toml").touch()
    with pytest.raises(RunError, match="holds a run already"), track(recorder, folder=tmp_path) as tracking:
        search(tiny, quick, out=tmp_path, progress=tracking)
    assert recorder.told == []


def test_keys_are_kept_out_of_messages(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", KEY)
    monkeypatch.setenv("SHORT_KEY", "e")
    assert reason(ValueError(f"wrong key\n {KEY}")) == "wrong key ***"
    assert len(reason(ValueError("x" * 1000))) < 310


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_said_before_work(name, fasteraa, monkeypatch, tmp_path):
    packages = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
    monkeypatch.setitem(sys.modules, packages[name], None)
    monkeypatch.delitem(sys.modules, f"fasteraa.report.trackers.{name}", raising=False)
    for command in ("search", "compare"):
        code, out, error = fasteraa(command, "nowhere", "--out", tmp_path / "run", "--tracker", name)
        assert (code, out) == (2, "")
        assert f"the tracker '{name}' needs a package that is not installed: pip install 'fasteraa[{name}]'" in error
        assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_tracker_of_your_own_as_documented(tmp_path, capsys):
    page = (Path(__file__).parents[2] / "docs" / "trackers.md").read_text()
    names = {}
    exec(page.split("```python\n")[2].split("```")[0], names)
    (tmp_path / "summary.txt").touch()
    with track(names["Printer"](), folder=tmp_path, progress=Lines()) as tracking:
        tracking.begin({})
        tracking.log({"error/none": 5.2}, 0)
    assert capsys.readouterr().out.splitlines() == [
        "printer: on the screen", "0 {'error/none': 5.2}", f"finished {tmp_path / 'summary.txt'}"
    ]  # fmt: skip


def test_unknown_trackers():
    with pytest.raises(ConfigError, match="unknown tracker 'wandbb': did you mean 'wandb'"):
        track("wandbb", folder="run")


# --- the real ones ---------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """The trackers' own files go to a folder of the test, and nothing goes to the network."""
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "home"))
    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("GIT_PYTHON_REFRESH", "quiet")
    monkeypatch.setenv("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()  # else it keeps the variables of this test


QUICK = ["--subset", 40, "--size", 12, "--batch-size", 16, "--sub-policies", 2, "--ops", "flip,invert,rotate",
         "--device", "cpu", "--methods", "faster-aa", "--no-race"]  # fmt: skip
METRICS = {f"search/{name}" for name in ("distance", "penalty", "class_loss", "policy_class_loss", "change",
                                         "from_start", "seconds")}  # fmt: skip


def whole_run(path):
    """W&B's own process writes the last records a moment after `finish` came back."""
    for _ in range(300):
        records = list(wandb_records(path))
        if records and records[-1].WhichOneof("record_type") == "exit":
            return records
        time.sleep(0.1)
    raise AssertionError(f"{path} has no end")


def wandb_records(path):
    """The records of an offline run: LevelDB's log format behind seven bytes of W&B's own, each a protobuf message."""
    from wandb.proto import wandb_internal_pb2

    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # what is left of a block is too short for a header
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if at > len(data):  # it is still being written
            return
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def items_of(record):
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.item}


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "methods/faster-aa/metrics.jsonl").read_text().splitlines()]


def bytes_of(folder):
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_wandb_offline(alone, fasteraa, monkeypatch, tmp_path):
    """A run that is written without a network, read back from its file, and resumed."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    out = tmp_path / "run"
    code, said, error = fasteraa("search", "--out", out, "--epochs", 2, "--tracker", "wandb", *QUICK)
    assert (code, error) == (0, "")
    (folder,) = out.glob("wandb/offline-run-*")
    assert f"wandb sync {folder}" in said
    (file,) = folder.glob("*.wandb")
    records = whole_run(file)
    rows = [items_of(record.history) for record in records if record.WhichOneof("record_type") == "history"]
    assert [row["_step"] for row in rows] == [1, 2]
    for row, measured in zip(rows, metrics_of(out), strict=True):
        assert set(row) >= METRICS
        assert all(row[name] == measured[name.removeprefix("search/")] for name in METRICS)
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (run.project, run.display_name, run.job_type) == ("fasteraa", "run", "search")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (config["epochs"], config["ops"]) == (2, ["flip", "invert", "rotate"])
    summary = {}
    for record in records:
        if record.WhichOneof("record_type") == "summary":
            summary |= {item.key: json.loads(item.value_json) for item in record.summary.update}
    assert summary["hash"] == Policy.load(out / "policy.json").hash
    (end,) = [record.exit for record in records if record.WhichOneof("record_type") == "exit"]
    assert end.exit_code == 0
    for name in ("policy.json", "preview.png", "summary.txt"):
        assert not (folder / "files" / name).is_symlink()
        assert (folder / "files" / name).read_bytes() == (out / name).read_bytes()
    written = bytes_of(out)
    assert KEY.encode() not in written
    assert run.host == ""
    assert f'"{socket.gethostname()}"'.encode() not in written

    code, _, error = fasteraa("search", "--out", out, "--resume", "--epochs", 3, "--tracker", "wandb", *QUICK)
    assert (code, error) == (0, "")
    file = (out / "wandb" / "latest-run").resolve() / file.name  # the same id
    records = whole_run(file)
    assert [items_of(r.history)["_step"] for r in records if r.WhichOneof("record_type") == "history"] == [3]


def test_wandb_without_a_key_stays_offline_and_notes_a_signal(alone, monkeypatch, tiny, quick, tmp_path, capsys):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    out = tmp_path / "run"
    with pytest.raises(Stopped), track("wandb", interrupting(), folder=out, config=quick, progress=Lines()) as tracking:
        search(tiny, quick, out=out, progress=tracking)
    assert "an offline run; to send it: wandb sync" in capsys.readouterr().out
    (file,) = out.glob("wandb/offline-run-*/*.wandb")
    records = whole_run(file)
    (end,) = [record.exit for record in records if record.WhichOneof("record_type") == "exit"]
    assert end.exit_code == 130


def test_wandb_without_an_answer_stays_offline(alone, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "0.5")
    with track("wandb", folder=tmp_path / "run", progress=Lines()) as tracking:
        tracking.begin({"epochs": 3})
        tracking.log({"search/distance": 0.5}, 1)
    out, error = capsys.readouterr()
    assert "an offline run; to send it: wandb sync" in out
    assert KEY not in out + error
    (file,) = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    (row,) = [items_of(r.history) for r in whole_run(file) if r.WhichOneof("record_type") == "history"]
    assert row["search/distance"] == 0.5


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def mlflow_server(alone, tmp_path):
    """A real one, on this machine alone: (its address, the process)."""
    port = free_port()
    folder = tmp_path / "server"
    folder.mkdir()
    arguments = ["--host", "127.0.0.1", "--port", port, "--workers", 1, "--backend-store-uri", "sqlite:///mlflow.db",
                 "--artifacts-destination", "./artifacts"]  # fmt: skip
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *map(str, arguments)],
            cwd=folder, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        for _ in range(1200):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except OSError:
                assert process.poll() is None, (tmp_path / "server.log").read_text()
                time.sleep(0.1)
        yield f"127.0.0.1:{port}", process
    finally:
        stop(process)


def stop(process):
    """The server and its workers; they have a session of their own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def ask(address, path, **body):
    """MLflow's REST interface, not its client: what another program sees."""
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"http://{address}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def api(address, path, **body):
    return json.loads(ask(address, f"/api/2.0/mlflow/{path}", **body))


@pytest.mark.slow
def test_mlflow_server(mlflow_server, fasteraa, monkeypatch, tiny, quick, tmp_path, caplog):
    """Parameters, metrics, files and the end of a run that was resumed, on a real server; and then that goes away."""
    address, process = mlflow_server
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://joe:{PASSWORD}@{address}")
    out = tmp_path / "run"
    code, said, error = fasteraa("search", "--out", out, "--epochs", 2, "--tracker", "mlflow", *QUICK)
    assert (code, error) == (0, "")
    assert f"of experiment 'fasteraa' at http://***@{address}" in said
    assert PASSWORD not in said
    code, _, error = fasteraa("search", "--out", out, "--resume", "--epochs", 3, "--tracker", "mlflow", *QUICK)
    assert (code, error) == (0, "")

    experiment = api(address, "experiments/get-by-name?experiment_name=fasteraa")["experiment"]["experiment_id"]
    (run,) = api(address, "runs/search", experiment_ids=[experiment])["runs"]
    assert (run["info"]["run_name"], run["info"]["status"]) == ("run", "FINISHED")
    parameters = {each["key"]: each["value"] for each in run["data"]["params"]}
    assert parameters["epochs"] == "2"  # as it began
    assert json.loads(parameters["ops"]) == ["flip", "invert", "rotate"]
    assert {each["key"] for each in run["data"]["metrics"]} == METRICS
    number = run["info"]["run_id"]
    for name in METRICS:
        history = api(address, f"metrics/get-history?run_id={number}&metric_key={name}")["metrics"]
        expected = [(row["epoch"], row[name.removeprefix("search/")]) for row in metrics_of(out)]
        assert [(each["step"], each["value"]) for each in history] == expected
    tags = {each["key"]: each["value"] for each in run["data"]["tags"]}
    assert tags["fasteraa.hash"] == Policy.load(out / "policy.json").hash
    assert "mlflow.user" not in tags
    stored = ask(address, f"/get-artifact?run_uuid={number}&path=policy.json")
    assert stored == (out / "policy.json").read_bytes()
    assert PASSWORD.encode() not in bytes_of(out)

    recorder = Recorder(then=lambda: stop(process))
    with track("mlflow", recorder, folder=tmp_path / "other", config=quick) as tracking:
        result = search(tiny, quick, out=tmp_path / "other", progress=tracking)
    assert gradient(result)["finished"]
    assert recorder.calls == ["start", "log", "log", "log", "finish"]
    (warning,) = [record.getMessage() for record in caplog.records if record.name.startswith("fasteraa")]
    assert warning.startswith("mlflow failed and is no longer used:")
    assert PASSWORD not in warning


def test_mlflow_without_a_place_to_write_to_is_said_before_work(alone, fasteraa, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://joe:{PASSWORD}@127.0.0.1:{free_port()}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    code, said, error = fasteraa("search", "nowhere", "--out", tmp_path / "run", "--tracker", "mlflow")
    assert (code, said) == (2, "")
    assert "MLflow has no place to write to: set MLFLOW_TRACKING_URI" in error
    assert len(error.splitlines()) == 1
    assert PASSWORD not in error
    assert not (tmp_path / "run").exists()


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def test_tensorboard(tiny, tmp_path):
    out = tmp_path / "run"
    config = SearchConfig(epochs=2, batch_size=16, sub_policies=2, ops=("flip", "invert"))
    with track("tensorboard", folder=out, config=config) as tracking:
        search(tiny, config, out=out, progress=tracking)
    found = events(out / "tensorboard")
    assert set(found.Tags()["scalars"]) == METRICS
    for name in METRICS:
        expected = [(row["epoch"], pytest.approx(row[name.removeprefix("search/")])) for row in metrics_of(out)]
        assert [(event.step, event.value) for event in found.Scalars(name)] == expected
    texts = {tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in found.Tags()["tensors"]}
    assert "Use faster-aa" in texts["summary/text_summary"]
    assert '"epochs": 2' in texts["config/text_summary"]
    assert Policy.load(out / "policy.json").hash in texts["result/text_summary"]


def test_compare(fasteraa, alone, tmp_path):
    import numpy as np

    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8), np.arange(40) % 2
    np.savez(tmp_path / "x.npz", x_train=x[:32], y_train=y[:32], x_test=x[32:], y_test=y[32:])
    out = tmp_path / "out"
    code, said, error = fasteraa(
        "compare", tmp_path / "x.npz", "-p", "none,randaugment(2,14)", "--seeds", 2, "--out", out, "--jobs", 1,
        "--epochs", 1, "--batch-size", 8, "--device", "cpu", "--network", "small", "--tracker", "tensorboard",
    )  # fmt: skip
    assert (code, error) == (0, "")
    assert "tensorboard: events in" in said
    rows = json.loads((out / "comparison.json").read_text())["rows"]
    found = events(Path(out) / "tensorboard")
    assert set(found.Tags()["scalars"]) == {"error/none", "error/randaugment(2,14)"}
    for row in rows:
        seen = [(str(event.step), pytest.approx(event.value)) for event in found.Scalars(f"error/{row['label']}")]
        assert seen == list(row["errors"].items())


def test_names_that_mlflow_does_not_take():
    pytest.importorskip("mlflow")
    from mlflow.utils.validation import _validate_metric_name

    from fasteraa.report.trackers.mlflow import _key

    assert _key("error/randaugment(2,14)") == "error/randaugment-2-14-"
    _validate_metric_name(_key("error/größe=runs/a+runs/b"))
