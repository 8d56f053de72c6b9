"""A torchvision that does not fit is noticed before any work."""

import importlib.util
from types import SimpleNamespace

import pytest

from fasteraa.errors import ConfigError
from fasteraa.runtime.packages import check_torchvision


def test_one_without_its_compiled_part(tmp_path, monkeypatch):
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    )
    with pytest.raises(ConfigError, match="its compiled part, torchvision/_C, is missing"):
        check_torchvision()
    (tmp_path / "_C.so").write_bytes(b"no library")
    with pytest.raises(ConfigError, match="do not fit each other"):
        check_torchvision()
