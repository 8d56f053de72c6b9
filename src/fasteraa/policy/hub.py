"""Policies on the Hugging Face hub: a repository with policy.json and its card. `huggingface_hub` is an extra."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fasteraa._version import __version__
from fasteraa.errors import PolicyError
from fasteraa.policy.hub_card import PREVIEW, card
from fasteraa.policy.policy import Policy
from fasteraa.runtime.files import replacing, write_atomic
from fasteraa.runtime.packages import quiet_hub

FILE = "policy.json"


def save_folder(
    policy: Policy,
    folder: str | os.PathLike[str],
    *,
    repo_id: str | None = None,
    license: str | None = None,
    tags: Iterable[str] = (),
    preview: str | os.PathLike[str] | None = None,
) -> None:
    """What a repository on the hub holds: policy.json, README.md and maybe preview.png."""
    folder = Path(folder)
    policy.save(folder / FILE)
    text = card(policy, repo_id, license=license, tags=tags, preview=preview is not None)
    write_atomic(folder / "README.md", text, PolicyError)
    if preview is not None:
        with replacing(folder / PREVIEW, PolicyError) as partial:
            shutil.copyfile(preview, partial)


def push(
    policy: Policy,
    repo_id: str,
    *,
    token: str | bool | None = None,
    private: bool | None = None,
    revision: str | None = None,
    message: str | None = None,
    endpoint: str | None = None,
    **about: Any,
) -> str:
    """Make the repository if it is not there, commit the files in one go, return the address of the commit."""
    api = _api(endpoint, token)
    with tempfile.TemporaryDirectory() as folder, _explain_hub_error(f"the policy could not be pushed to {repo_id!r}"):
        save_folder(policy, folder, repo_id=repo_id, **about)
        api.create_repo(repo_id, private=private, repo_type="model", exist_ok=True)
        done = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=revision,
            commit_message=message or f"{policy.name}, {policy.hash[:19]}",
        )
        return str(done.commit_url)


def pull(
    source: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Policy:
    """A policy from a repository, or from a folder as `save_folder` writes it: checked like any other policy file."""
    if Path(source).is_dir():
        return Policy.load(Path(source) / FILE)
    api = _api(endpoint, token)
    with _explain_hub_error(f"no policy could be fetched from {str(source)!r}"):
        file = api.hf_hub_download(str(source), FILE, repo_type="model", revision=revision, cache_dir=cache_dir)
    return Policy.load(file)


def _api(endpoint: str | None, token: str | bool | None) -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise PolicyError(
            "the hub needs the package huggingface_hub, which is not installed: pip install 'fasteraa[hub]'"
        ) from error
    return HfApi(endpoint=endpoint, token=token, library_name="fasteraa", library_version=__version__)


@contextmanager
def _explain_hub_error(what: str) -> Iterator[None]:
    """One sentence for whatever the hub, the network or the name of the repository is to blame for."""
    try:
        with quiet_hub():
            yield
    except PolicyError:
        raise
    except Exception as error:  # its errors, and those of the HTTP library beneath, have no base in common
        why = " ".join(str(error).split()) or type(error).__name__
        raise PolicyError(f"{what}: {why}") from error
