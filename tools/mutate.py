"""Break one line of operation arithmetic at a time and see a test turn red.

    python tools/mutate.py [--list] [PATTERN]

Every number, comparison and arithmetic operator in the operation rows, the families and the helpers they call is
changed once. A child process, forked after torch is loaded, runs the operation tests on the changed source. A mutant
that survives and is not in KNOWN (with the reason why it cannot matter) fails the run.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "fasteraa"
FILES = ("ops/tone.py", "ops/blend.py", "ops/warp.py", "ops/erase.py", "ops/forward.py", "images.py")
TESTS = ("tests/ops", "tests/policy/test_soft.py", "tests/policy/test_transform.py")

# (file, line as written, what was changed): why no test can tell
_ON_GPU = "only runs on a GPU; its test is marked gpu"
_UNUSED = "the value is never used: the where() around it takes the other branch"
_NUMPY = "numpy takes any negative number for 'whatever is left'"
KNOWN: dict[tuple[str, str, str], str] = {
    ("ops/tone.py", 'if self.index.device.type == "cpu":  # faster there; elsewhere bincount waits for the device', "Eq -> NotEq"): "both ways of counting give the same",
    ("ops/tone.py", "counts = torch.zeros(batch, channels, 256, dtype=torch.int64, device=index.device)", "256 -> 257"): _ON_GPU,
    ("ops/tone.py", "return counts.scatter_add_(2, index, torch.ones_like(index)).double()", "2 -> 3"): _ON_GPU,
    ("ops/tone.py", "return np.array(self._image.histogram(), dtype=np.float64).reshape(1, -1, 256)", "1 -> 2"): _NUMPY,
    ("ops/tone.py", "return np.array(self._image.getextrema(), dtype=np.float64).reshape(1, -1, 2)", "1 -> 2"): _NUMPY,
    ("ops/tone.py", "scale = xp.full_like(span, 255) / xp.where(span > 0, span, 1.0)", "1.0 -> 2.0"): _UNUSED,
    ("ops/tone.py", "scale = xp.full_like(span, 255) / xp.where(span > 0, span, 1.0)", "0 -> 1"): "a span of 1 becomes 1",
    ("ops/tone.py", "spread = xp.floor((xp.floor(step / 2) + before) / xp.where(step > 0, step, 1.0))", "1.0 -> 2.0"): _UNUSED,
    ("ops/tone.py", "spread = xp.floor((xp.floor(step / 2) + before) / xp.where(step > 0, step, 1.0))", "0 -> 1"): "a step of 1 becomes 1",
    ("ops/tone.py", "table: list[int] = curve.clip(0, 255).astype(np.uint8).tolist()", "255 -> 256"): "the curves it is for stay within 0..255",
}  # fmt: skip

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.RShift: ast.LShift, ast.USub: ast.UAdd,
}  # fmt: skip


def mutants(tree: ast.Module) -> Iterator[tuple[int, str, ast.Module]]:
    """(line, what was changed, the changed module)."""
    for index, node in enumerate(ast.walk(tree)):
        for what in _changes(node):
            changed = copy.deepcopy(tree)
            target = next(n for i, n in enumerate(ast.walk(changed)) if i == index)
            _apply(target, what)
            yield node.lineno, what, changed  # type: ignore[attr-defined]


def _changes(node: ast.AST) -> list[str]:
    if isinstance(node, ast.BinOp | ast.UnaryOp) and type(node.op) in _SWAPS:
        if isinstance(node.op, ast.BitOr) and isinstance(node, ast.BinOp) and _is_type(node):
            return []
        return [f"{type(node.op).__name__} -> {_SWAPS[type(node.op)].__name__}"]
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
        return [f"{type(node.ops[0]).__name__} -> {_SWAPS[type(node.ops[0])].__name__}"]
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return [f"{node.value} -> {node.value + 1}"]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return [f"{node.value} -> {not node.value}"]
    return []


def _is_type(node: ast.BinOp) -> bool:
    """`int | None` and the like."""
    return any(isinstance(side, ast.Constant) and side.value is None for side in (node.left, node.right))


def _apply(node: ast.AST, what: str) -> None:
    if isinstance(node, ast.BinOp | ast.UnaryOp):
        node.op = _SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Compare):
        node.ops[0] = _SWAPS[type(node.ops[0])]()  # type: ignore[call-overload]
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1  # type: ignore[operator]


def _skipped(tree: ast.Module) -> set[int]:
    """Lines without arithmetic: annotations, module constants for types, Pillow oracles, error texts."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.Import | ast.ImportFrom):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("_pillow"):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.Lambda):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lru_cache":
            lines.add(node.lineno)
    return lines


def survives(file: str, module: ast.Module) -> bool:
    """Run the tests on the mutant in a forked child; True if they pass."""
    child = os.fork()
    if child == 0:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        status = _run_tests(file, module)
        os._exit(status)
    return os.waitstatus_to_exitcode(_wait(child)) == 0


def _wait(child: int, limit_s: float = 300) -> int:
    """A mutant that hangs counts as caught."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.02)
    os.kill(child, 9)
    return os.waitpid(child, 0)[1]


def _run_tests(file: str, module: ast.Module) -> int:
    import importlib.abc
    import importlib.machinery
    import importlib.util

    import pytest

    name = "fasteraa." + file.removesuffix(".py").replace("/", ".")
    code = compile(ast.fix_missing_locations(module), str(SOURCE / file), "exec")

    class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
            if fullname != name:
                return None
            return importlib.util.spec_from_loader(name, self, origin=str(SOURCE / file))

        def exec_module(self, module):  # type: ignore[no-untyped-def]
            module.__file__ = str(SOURCE / file)
            exec(code, vars(module))

    sys.meta_path.insert(0, Finder())
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", *TESTS]
    try:
        return int(pytest.main(arguments))
    except BaseException as error:
        print("the tests did not run:", repr(error))
        return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="only mutants whose 'file:line' contains this")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    parser.add_argument("--part", default="1/1", help="i/n: the i-th of n shares of the mutants")
    options = parser.parse_args()
    os.chdir(ROOT)
    jobs = [job for file in FILES for job in _jobs(file) if options.pattern in f"{job[0]}:{job[1]}"]
    part, parts = map(int, options.part.split("/"))
    jobs = jobs[part - 1 :: parts]
    if options.list:
        print(*(f"{file}:{line} {what}: {text}" for file, line, what, text, _ in jobs), sep="\n")
        return 0
    import torch
    import torchvision  # noqa: F401
    from torchvision.transforms import v2  # noqa: F401

    torch.set_num_threads(1)
    for file in FILES:
        if not survives(file, ast.parse((SOURCE / file).read_text())):
            print(f"the tests fail on {file} as it is: nothing to learn from mutants")
            return 1
    alive = []
    for file, line, what, text, module in jobs:
        if survives(file, module):
            why = KNOWN.get((file, text, what))
            print(f"survived  {file}:{line} {what}: {text}  ({why or 'NOT LISTED'})", flush=True)
            if why is None:
                alive.append((file, line, what))
    print(f"{len(jobs)} mutants, {len(alive)} survived unlisted")
    return bool(alive)


def _jobs(file: str) -> Iterator[tuple[str, int, str, str, ast.Module]]:
    text = (SOURCE / file).read_text()
    tree = ast.parse(text)
    skipped, lines = _skipped(tree), text.splitlines()
    for line, what, module in mutants(tree):
        if line not in skipped:
            yield file, line, what, lines[line - 1].strip(), module


if __name__ == "__main__":
    sys.exit(main())
