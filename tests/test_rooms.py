"""The house: which room may import which, what is public, and that --help is quick because torch stays out."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest

import fasteraa
from fasteraa import _version

SOURCE = Path(fasteraa.__file__).parent
# a room may import itself and the rooms before it
ORDER = [
    "_version", "_lazy", "errors", "images", "runtime", "ops", "policy", "data", "offline", "nets", "train", "methods",
    "selection", "comparison", "export", "report", "api", "reproduce", "bench", "testing", "cli",
]  # fmt: skip


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imports(path: Path):
    """(module, is it at the top level) for every import in a file."""
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            yield name, id(node) in top


FILES = sorted(SOURCE.rglob("*.py"))
LIGHT = {
    "policy/policy.py", "policy/parts.py", "policy/json_format.py", "policy/describe.py", "policy/hub_card.py",
    "policy/hub.py", "errors.py", "runtime/files.py", "runtime/lock.py", "runtime/signals.py", "runtime/run_folder.py",
    "runtime/settings.py", "runtime/registry.py", "runtime/decisions.py", "runtime/progress.py", "methods/config.py",
    "methods/method.py", "methods/tpe.py", "selection/config.py",
}  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_arrows_point_down(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if parts[0] in ("__init__", "__main__"):
        return
    assert parts[0] in ORDER, f"{parts[0]} is no known room"
    allowed = set(ORDER[: ORDER.index(parts[0]) + 1])
    for module, _ in imports(path):
        if module.startswith("fasteraa."):
            assert room(module) in allowed, f"{path.name} imports {module} from a room above it"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_heavy_imports_stay_in_their_rooms(path):
    where = path.relative_to(SOURCE).as_posix()
    for module, top in imports(path):
        base = module.split(".")[0]
        if base == "triton":
            assert where.startswith("ops/kernels/") or where == "nets/pointwise_triton.py"
        if where in LIGHT:
            assert base not in ("torch", "torchvision", "numpy", "huggingface_hub") or not top
        if where.startswith("cli/") and top:
            assert base not in ("torch", "torchvision", "numpy", "rich")


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_a_search_does_not_wait_for_what_it_does_not_need():
    """torch's compiler and torchvision's models take seconds to import, and are imported in passing by many a call."""
    config = "fasteraa.SearchConfig(subset=64, batch_size=32, epochs=1, size=16)"
    search = f"fasteraa.search(None, {config}, methods='faster-aa', race=False, device='cpu')"
    loaded = modules_after(f"import fasteraa\n{search}")
    assert "fasteraa.methods.faster_aa.fast_step" in loaded
    assert not loaded & {"torch._dynamo", "torch._inductor", "torchvision", "sympy"}


def test_help_does_not_wait_for_torch():
    loaded = modules_after("import fasteraa.cli.app, fasteraa.ops, fasteraa")
    assert not loaded & {"torch", "torchvision", "numpy", "rich"}


def test_the_guide_to_extending_lists_the_rooms_in_their_order():
    text = (Path(__file__).parent.parent / "docs" / "extend.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"imports only those before it in this list: (.*?)\.\n", text, flags=re.DOTALL)
    assert re.findall(r"`(\w+)`", listed) == [name for name in ORDER if not name.startswith("_")]


def test_public_names():
    assert sorted(fasteraa.__all__) == sorted(PUBLIC)
    for name in fasteraa.__all__:
        assert getattr(fasteraa, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fasteraa.nothing


def test_no_room_is_named_like_a_public_function():
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir()}
    assert not rooms & (set(PUBLIC) - {"ops"})


MISLEADING = {
    "arena", "caution", "dose", "found", "goods", "heats", "hides", "in_words", "kept", "known", "meetings", "reach",
    "settled", "story", "telling", "told", "twice", "verdict", "wanted",
}  # fmt: skip


def misleading_names(text):
    """Functions, classes and parameters that are called by a participle or a metaphor."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        else:
            continue
        if name.strip("_").lower() in MISLEADING:
            yield name


def test_functions_classes_and_parameters_are_called_what_they_are():
    named = {path.relative_to(SOURCE).as_posix(): list(misleading_names(path.read_text())) for path in FILES}
    assert {path: names for path, names in named.items() if names} == {}
    assert list(misleading_names("class Wanted:\n    def _kept(self, found, size): known = 1")) == [
        "Wanted",
        "_kept",
        "found",
    ]


# of generated code, blocks of networks, and what hardly another file imports
SHARED_CLASS_NAMES = {
    "Augment", "Block", "Draw", "PolicyTransform", "Rules", "Seen", "Setting", "Table", "_Plan", "_Stage",
}  # fmt: skip


def shared_class_names(texts):
    """Names of classes that several files have."""
    trees = [ast.parse(text) for text in texts]
    counts = Counter(name for tree in trees for name in {n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef)})
    return {name for name, count in counts.items() if count > 1}


def test_no_name_is_that_of_two_classes():
    shared = shared_class_names(path.read_text() for path in FILES)
    assert shared <= SHARED_CLASS_NAMES, "a new class needs a name of its own"
    assert shared == SHARED_CLASS_NAMES, "this exception is not needed any more"
    assert shared_class_names(["class A: ...\nclass B: ...", "class A: ..."]) == {"A"}


PUBLIC = [
    "Candidate", "Choice", "FasterAAError", "Policy", "RaceConfig", "SearchConfig", "SoftPolicy", "Span", "SubPolicy",
    "__version__", "apply", "compare", "load", "ops", "race", "search",
]  # fmt: skip


def test_a_package_without_a_checkout_asks_no_git(monkeypatch, tmp_path):
    """One that is installed in the environment of somebody's project must not tell that project's commit."""
    monkeypatch.setattr(_version, "__file__", str(tmp_path / "lib" / "fasteraa" / "_version.py"))
    monkeypatch.setattr(subprocess, "run", lambda *given, **options: pytest.fail("git was asked"))
    assert _version.commit.__wrapped__() is None
    (tmp_path / ".git").mkdir()
    said = subprocess.CompletedProcess([], 0, "abc-dirty\n")
    monkeypatch.setattr(subprocess, "run", lambda *given, **options: said)
    assert _version.commit.__wrapped__() == "abc-dirty"
    monkeypatch.setattr(subprocess, "run", Mock(side_effect=FileNotFoundError))
    assert _version.commit.__wrapped__() is None
