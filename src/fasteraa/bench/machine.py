"""What a measurement was made on: machine, versions, commit."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

from fasteraa._version import commit


def describe_machine() -> dict[str, str]:
    import torch

    facts = {"cpu": _cpu_name(), "cores": str(os.cpu_count()), "python": platform.python_version()}
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    for package in ("torch", "torchvision", "pillow", "timm", "kornia", "triton"):
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {**facts, "commit": commit() or "unknown"}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
