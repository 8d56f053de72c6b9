"""A Ray cluster: is it there, the connection to it, and whether its head still answers."""

from __future__ import annotations

import os
import platform
import socket
import time
import warnings
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from fasteraa._version import __version__
from fasteraa.errors import ClusterLost, ConfigError, RunError
from fasteraa.runtime.documents import cut

POLL_S = 1.0  # between looks at the cluster
MISSED = 3  # looks in a row without an answer of the head
KEPT = "what was finished is kept: give the same command again to continue"
# what Ray prints of a lost worker or node, in up to 30 lines; what is done about it is reported in one line of ours
_RAYS_OWN = r"^(A worker died or was killed|Raylet is terminated|The node with node id|Task \S+ failed\. There are)"


def check_cluster(address: str | None) -> None:
    """Before any work: is Ray installed, and is there a cluster?"""
    address, ray = address or "auto", _ray()
    if ray.is_initialized():
        return
    if _is_plain(address):
        _check_answers(address)
    else:
        connect(address)
        ray.shutdown()


def connect(address: str) -> tuple[Any, bool]:
    """Ray, and whether the connection is ours to close."""
    ray = _ray()
    if ray.is_initialized():
        return ray, False
    if _is_plain(address):
        _check_answers(address)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Ray's own plans
            ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        if "ersion mismatch" in str(error):
            raise ConfigError(_mismatch(str(error))) from error
        where = "on this machine" if address == "auto" else f"at {address}"
        raise ConfigError(
            f"there is no Ray {where} ({cut(str(error).strip().splitlines()[0], 120)}): start one (ray start "
            "--head), or give HOST:PORT of a head"
        ) from error
    return ray, True


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _RAYS_OWN)  # Ray reads it when it is imported
    try:
        import ray
    except ImportError as error:
        raise ConfigError("--engine ray needs Ray: pip install 'fasteraa[ray]'") from error
    return ray


def _is_plain(address: str) -> bool:
    """HOST:PORT, which a socket can try."""
    return ":" in address and "//" not in address


def _check_answers(address: str) -> None:
    if not answers(address):
        raise ConfigError(f"there is no Ray at {address}: give HOST:PORT of a head (ray start --head), or auto")


def _mismatch(text: str) -> str:
    """Ray's own words, in one line."""
    return f"Ray or Python differ between the cluster and this machine: {cut(' '.join(text.split()), 300)}"


def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


class Head:
    """Of a cluster. Asked before anything that would wait for it: a minute later Ray would end this process."""

    def __init__(self, address: str):
        self.address, self.missed, self._asked = address, 0, float("-inf")

    def answers(self) -> bool:
        if time.monotonic() < self._asked + POLL_S:
            return True
        self._asked = time.monotonic()
        self.missed = 0 if answers(self.address) else self.missed + 1
        if self.lost:
            raise ClusterLost(f"the head of the Ray cluster at {self.address} does not answer any more: {KEPT}")
        return self.missed == 0

    @property
    def lost(self) -> bool:
        return self.missed >= MISSED


# --- versions --------------------------------------------------------------------------------------------------------


def versions(*packages: str) -> dict[str, str]:
    """Of what results depend on."""
    more = {name: metadata.version(name) for name in ("torch", *packages)}
    return {"fasteraa": __version__, "Python": platform.python_version(), **more}


def check_versions(mine: Mapping[str, str], there: Mapping[str, str], node: str) -> None:
    """Outcomes must not depend on the node that they come from."""
    for name, version in mine.items():
        if there[name] != version:
            raise RunError(
                f"all nodes must have the same version of {name}: the driver has {version}, the node {node} has "
                f"{there[name]}"
            )
