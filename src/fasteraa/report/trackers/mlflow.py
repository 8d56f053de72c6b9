"""MLflow, by its client alone (mlflow-skinny): the server or store that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

# a server that went away would hold up the search for minutes; MLflow reads these with every request
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # where to look is said at the start
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # else its import fails where git is not installed

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from fasteraa.errors import ConfigError
from fasteraa.report.trackers.tracking import Ending, Opening, reason
from fasteraa.runtime.files import write_atomic

_STATES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_NOTE = "mlflow_run.txt"  # in the folder: the id of its run


class MLflow:
    name = "mlflow"

    def __init__(self) -> None:
        self._experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fasteraa")
        self._run = ""
        try:
            self._client: Any = MlflowClient()
            self._known = self._client.get_experiment_by_name(self._experiment)
        except MlflowException as error:
            raise ConfigError(
                "MLflow has no place to write to: set MLFLOW_TRACKING_URI to a server that answers, such as "
                f"http://127.0.0.1:5000 of `mlflow server` ({reason(error)})"
            ) from error

    def start(self, opening: Opening) -> str:
        note = opening.folder / _NOTE
        if not (opening.resume and note.is_file() and self._reopened(note.read_text().strip())):
            number = self._known.experiment_id if self._known else self._client.create_experiment(self._experiment)
            tags = {"fasteraa.kind": opening.kind}
            self._run = self._client.create_run(number, run_name=opening.name, tags=tags).info.run_id
            params = [Param(name, _words(value)) for name, value in opening.settings.items()]
            self._client.log_batch(self._run, params=params)
            write_atomic(note, self._run + "\n")
        return f"run {self._run} of experiment {self._experiment!r} at {self._client.tracking_uri}"

    def _reopened(self, run: str) -> bool:
        """Continue that run; not if the server does not know it."""
        with suppress(MlflowException):
            self._client.update_run(run, status="RUNNING")
            self._run = run
        return bool(self._run)

    def log(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(self._run, metrics=[Metric(_key(n), v, now, step) for n, v in values.items()])

    def finish(self, ending: Ending) -> None:
        try:
            for name, value in ending.summary.items():
                self._client.set_tag(self._run, f"fasteraa.{_key(name)}", _words(value))
            for file in ending.files:
                self._client.log_artifact(self._run, str(file))
        finally:
            self._client.set_terminated(self._run, _STATES[ending.status])


def _key(name: str) -> str:
    """MLflow takes letters, digits and few signs."""
    return re.sub(r"[^\w./ -]+", "-", name, flags=re.ASCII)


def _words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
