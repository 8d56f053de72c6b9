"""A policy from whatever a person types: a file, or a name."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from fasteraa.errors import PolicyError, choices_hint, reason
from fasteraa.policy.named import NAMES, is_name, named
from fasteraa.policy.policy import Policy
from fasteraa.runtime.arguments import checks_types
from fasteraa.runtime.documents import cut, quoted


@checks_types(PolicyError)
def load_policy(source: str | os.PathLike[str]) -> Policy:
    """A policy by its file `runs/a/policy.json`, its run folder, its name `randaugment(2,14)`, or `hf:user/name`."""
    text = os.fspath(source)
    path = Path(text)
    try:
        if text.strip() and path.is_dir():
            path = _policy_of_run(path)
        if path.suffix == ".json" or path.is_file():
            return Policy.load(path)
    except OSError as error:  # a folder on the way that may not be looked into
        if error.errno != errno.ENAMETOOLONG:
            raise PolicyError(f"{cut(repr(text))} could not be read: {reason(error)}") from error
    if text.startswith("hf:"):
        source, _, revision = text.removeprefix("hf:").partition("@")
        return Policy.from_hub(source, revision=revision or None)
    if not is_name(text):
        raise PolicyError(
            f"no policy file, no run folder and no known policy of that name: {quoted(text, 80)}; "
            f"{choices_hint(text.split('(')[0].strip().lower(), NAMES)}"
        )
    return named(text)


def _policy_of_run(folder: Path) -> Path:
    if (folder / "policy.json").exists():
        return folder / "policy.json"
    if (folder / "config.toml").exists():
        raise PolicyError(
            f"the search in {str(folder)!r} has not ended yet, so it has no policy (resume=True continues it)"
        )
    raise PolicyError(f"the folder {str(folder)!r} is no run folder: it holds no policy.json")
