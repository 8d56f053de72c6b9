"""Break one line of operation arithmetic at a time and see a test turn red.

    python tools/mutate.py [--jobs N] [--out FILE] [--list] [PATTERN]

Every number, comparison and arithmetic operator in the operation rows, the families and the helpers they call is
changed once. A child process, forked after torch is loaded, runs the operation tests on the changed source; `--jobs`
children work at a time. A mutant that survives and is not in KNOWN (with the reason why it cannot matter) fails the
run. Needs pytest beside the package's own dependencies; the package need not be installed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "fasteraa"
FILES = ("ops/tone.py", "ops/blend.py", "ops/warp.py", "ops/erase.py", "ops/forward.py", "images.py")
TESTS = ("tests/ops", "tests/policy/test_soft.py", "tests/policy/test_transform.py", "tests/policy/test_boxes.py")

# (file, line as written, what was changed): why no test can tell
_ON_GPU = "only runs on a GPU; its test is marked gpu"
_UNUSED = "the value is never used: the where() around it takes the other branch"
_SLOWER = "the general way gives the same, more slowly"
_PROBE = "any value and any size tell"
_NUMPY = "numpy takes any negative number for 'whatever is left'"
KNOWN: dict[tuple[str, str, str], str] = {
    ("ops/tone.py", 'if self.index.device.type == "cpu":  # faster there; elsewhere bincount waits for the device', "Eq -> NotEq"): "both ways of counting give the same",
    ("ops/tone.py", "counts = torch.zeros(batch, channels, 256, dtype=torch.int64, device=index.device)", "256 -> 257"): _ON_GPU,
    ("ops/tone.py", "return counts.scatter_add_(2, index, torch.ones_like(index)).double()", "2 -> 3"): _ON_GPU,
    ("ops/tone.py", "return np.array(self._image.histogram(), dtype=np.float64).reshape(1, -1, 256)", "1 -> 2"): _NUMPY,
    ("ops/tone.py", "return np.array(self._image.getextrema(), dtype=np.float64).reshape(1, -1, 2)", "1 -> 2"): _NUMPY,
    ("ops/tone.py", "spread = xp.floor((xp.floor(step / 2) + before) / xp.where(step > 0, step, 1.0))", "1.0 -> 2.0"): _UNUSED,
    ("ops/tone.py", "spread = xp.floor((xp.floor(step / 2) + before) / xp.where(step > 0, step, 1.0))", "0 -> 1"): "a step of 1 becomes 1",
    ("ops/tone.py", "table: list[int] = curve.clip(0, 255).astype(np.uint8).tolist()", "255 -> 256"): "the curves it is for stay within 0..255",
    ("ops/warp.py", 'if matrix.device.type == "cpu" and not turns.any():  # asking a GPU would wait for it', "Eq -> NotEq"): _SLOWER,
    ("ops/warp.py", 'elif matrix.device.type == "cpu" and turns.all():', "Eq -> NotEq"): _SLOWER,
    ("ops/warp.py", "turns = (matrix[:, 1:4:2] != 0).any(1).view(-1, 1, 1)", "4 -> 5"): "columns 1 and 3 either way",
    ("ops/warp.py", "a, b, _, d, e, _ = op.rule(torch.tensor(0.37, dtype=torch.float64), 8, 8)", "0.37 -> 1.37"): _PROBE,
    ("ops/warp.py", "a, b, _, d, e, _ = op.rule(torch.tensor(0.37, dtype=torch.float64), 8, 8)", "8 -> 9"): _PROBE,
    ("ops/warp.py", "depth = (points[:, axis] - limit) * inwards", "Mult -> Div"): "inwards is 1 or -1",
    ("ops/warp.py", "return torch.stack([part + zeros for part in op.rule(value, width, height)], 1)", "Add -> Sub"): "zeros only give the shape",
    ("ops/warp.py", "return torch.stack([(e * x - b * y) / determinant, (a * y - d * x) / determinant], -1)", "Div -> Mult"): "every warp keeps areas: the determinant is 1 or -1",
    ("ops/warp.py", "for axis, limit, inwards in ((0, 0.0, 1.0), (0, float(width), -1.0), (1, 0.0, 1.0), (1, float(height), -1.0)):", "1.0 -> 2.0"): "depths are only compared with 0 and with each other",
    ("ops/warp.py", "return colour if len(colour) > 1 else colour[0]", "1 -> 2"): "a colour has one level or three",
    ("ops/warp.py", "return colour if len(colour) > 1 else colour[0]", "Gt -> GtE"): "Pillow takes (5,) for 5",
    ("ops/warp.py", "both = zip(_turned(matrix, width, height), _unturned(matrix, width, height, scaled), strict=True)", "True -> False"): "each has two parts",
    ("ops/warp.py", "for shift, side in zip(matrix.detach().numpy()[:, 2::3].T, (width, height), strict=True):", "True -> False"): "two of six columns, two sides",
    ("ops/warp.py", "return list(zip(*sides, strict=True))", "True -> False"): "both have a number for each image",
    ("ops/warp.py", "for target, source, (right, down) in zip(out.numpy(), image.numpy(), far, strict=True):", "True -> False"): "all have an entry for each image",
    ("images.py", "if not array.flags.writeable or min(array.strides, default=0) < 0:  # torch takes neither", "Lt -> LtE"): "a copy that was not needed",
    ("ops/warp.py", "if len(points) == 0 or bool((depth >= 0).all()):", "0 -> 1"): "no points are all inside, and cutting what is inside leaves it",
    ("ops/warp.py", "share = torch.where(crosses, depth / (depth - end_depth), 0)[:, None]", "0 -> 1"): _UNUSED,
    ("ops/warp.py", "return math.floor(shift + 0.5 * scale) - math.floor(0.5 * scale) if abs(scale) == 1 else shift", "Mult -> Div"): "the scale is 1 or -1 there",
    ("images.py", "if not array.flags.writeable or min(array.strides, default=0) < 0:  # torch takes neither", "0 -> 1"): "a copy that was not needed",
    ("images.py", "return torch.cat([image.new_full((1, 1, 1, 1), level / scale if scale > 1 else level) for level in levels], 1)", "Gt -> GtE"): "a level divided by 1",
    ("images.py", "return torch.cat([image.new_full((1, 1, 1, 1), level / scale if scale > 1 else level) for level in levels], 1)", "1 -> 2"): "the scale is 1 or 255",
    ("ops/forward.py", "FINE = 2**20  # parts of a pixel", "2 -> 3"): "any fine step does",
    ("ops/forward.py", "FINE = 2**20  # parts of a pixel", "20 -> 21"): "any fine step does",
}  # fmt: skip

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.RShift: ast.LShift, ast.USub: ast.UAdd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    what: str
    text: str  # the line as written
    module: ast.Module

    @property
    def key(self) -> tuple[str, str, str]:
        return self.file, self.text, self.what

    @property
    def excuse(self) -> str | None:
        return KNOWN.get(self.key)

    def __str__(self) -> str:
        excuse = f"  ({self.excuse})" if self.excuse else ""
        return f"{self.file}:{self.line} {self.what}: {self.text}{excuse}"


def mutants(tree: ast.Module) -> Iterator[tuple[int, str, ast.Module]]:
    """(line, what was changed, the changed module)."""
    words = _annotations(tree)
    for index, node in enumerate(ast.walk(tree)):
        for what in _changes(node) if id(node) not in words else []:
            changed = copy.deepcopy(tree)
            target = next(n for i, n in enumerate(ast.walk(changed)) if i == index)
            _apply(target, what)
            yield node.lineno, what, changed  # type: ignore[attr-defined]


def _changes(node: ast.AST) -> list[str]:
    if isinstance(node, ast.BinOp | ast.UnaryOp) and type(node.op) in _SWAPS:
        return [f"{type(node.op).__name__} -> {_SWAPS[type(node.op)].__name__}"]
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
        return [f"{type(node.ops[0]).__name__} -> {_SWAPS[type(node.ops[0])].__name__}"]
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return [f"{node.value} -> {node.value + 1}"]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return [f"{node.value} -> {not node.value}"]
    return []


def _annotations(tree: ast.Module) -> set[int]:
    """Nodes of annotations, which are never evaluated."""
    found = (getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns"))
    return {id(part) for node in found if node is not None for part in ast.walk(node)}


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


def start(file: str, module: ast.Module) -> int:
    """Fork a child that runs the tests on the mutant and exits with 0 if they pass."""
    child = os.fork()
    if child == 0:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os._exit(_run_tests(file, module))
    return child


def survivors(mutated: Sequence[Mutant], jobs: int, limit_s: float = 900) -> Iterator[tuple[Mutant, bool]]:
    """Each mutant with whether it survived, as they come in; one that hangs counts as caught."""
    waiting, running = list(reversed(mutated)), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            running[start(mutant.file, mutant.module)] = mutant, time.monotonic() + limit_s
        for child, (mutant, end) in list(running.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                del running[child]
                yield mutant, os.waitstatus_to_exitcode(status) == 0
            elif time.monotonic() > end:
                os.kill(child, 9)  # waitpid finds it next time
        time.sleep(0.02)


class _OwnTestsFirst:
    """Starts with the rows of the mutant's own family: most mutants fall there, in a second or two."""

    def __init__(self, file: str):
        self.family = Path(file).stem

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: not self._is_own(item))

    def _is_own(self, item: Any) -> bool:
        rows = getattr(getattr(item, "callspec", None), "params", {}).values()
        return any(getattr(getattr(row, "family", None), "name", None) == self.family for row in rows)


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
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not gpu", *TESTS]
    try:
        return int(pytest.main(arguments, plugins=[_OwnTestsFirst(file)]))
    except BaseException as error:
        print("the tests did not run:", repr(error))
        return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="", help="only mutants whose 'file:line' contains this")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    parser.add_argument("--part", default="1/1", help="i/n: the i-th of n shares of the mutants")
    parser.add_argument("--jobs", type=int, default=1, help="how many mutants are tried at a time")
    parser.add_argument("--out", type=Path, help="write the survivors there too")
    options = parser.parse_args()
    out = options.out.resolve() if options.out else None
    os.chdir(ROOT)
    found = [mutant for file in FILES for mutant in _mutants_of(file) if options.pattern in f"{file}:{mutant.line}"]
    part, parts = map(int, options.part.split("/"))
    found = found[part - 1 :: parts]
    if not found:
        print(f"no mutant has {options.pattern!r} in its place; files: {', '.join(FILES)}")
        return 2
    if options.list:
        print(*found, sep="\n")
        return 0
    _load()
    begin = time.monotonic()
    if broken := [mutant.file for mutant, passed in survivors(_unchanged(found), options.jobs) if not passed]:
        print(
            f"the tests fail on {', '.join(broken)} as it is: nothing to learn from mutants. Run: pytest {' '.join(TESTS)}"
        )
        return 1
    limit_s = max(300.0, 10 * (time.monotonic() - begin))  # a busy machine must not pass for a mutant that hangs
    return _report(found, options.jobs, limit_s, out, complete=not options.pattern and parts == 1)


def _load() -> None:
    """What every child needs, once; without a GPU, whose tests have marks of their own."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(SOURCE.parent))
    import torch
    import torchvision  # noqa: F401
    from torchvision.transforms import v2  # noqa: F401

    torch.set_num_threads(1)


def _unchanged(mutated: Sequence[Mutant]) -> list[Mutant]:
    files = dict.fromkeys(mutant.file for mutant in mutated)
    return [Mutant(file, 0, "nothing", "", ast.parse((SOURCE / file).read_text())) for file in files]


def _report(mutated: Sequence[Mutant], jobs: int, limit_s: float, out: Path | None, complete: bool) -> int:
    """Say who survives, as they do; then once more in order, with the ones to fix first."""
    listed, unlisted = [], []
    for count, (mutant, alive) in enumerate(survivors(mutated, jobs, limit_s), 1):
        if alive:
            print(f"{count}/{len(mutated)} survived  {mutant}", flush=True)
            (listed if mutant.excuse else unlisted).append(mutant)
        elif count % 25 == 0:
            print(f"{count}/{len(mutated)}", flush=True)
    place = {id(mutant): number for number, mutant in enumerate(mutated)}
    lines = [f"{len(mutated)} mutants, {len(unlisted)} survived unlisted, {len(listed)} listed"]
    for title, group in (("unlisted: a test is missing, or a reason", unlisted), ("listed", listed)):
        lines += [f"\n{title}:", *map(str, sorted(group, key=lambda m: place[id(m)]))] if group else []
    tried, alive_keys = {mutant.key for mutant in mutated}, {mutant.key for mutant in listed}
    stale = [key for key in KNOWN if key not in alive_keys and (key in tried or complete)]
    lines += ["\nlisted, but caught or gone (take them off the list):", *map(str, stale)] if stale else []
    print("\n".join(lines))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return bool(unlisted)


def _mutants_of(file: str) -> Iterator[Mutant]:
    text = (SOURCE / file).read_text()
    tree = ast.parse(text)
    skipped, lines = _skipped(tree), text.splitlines()
    for line, what, module in mutants(tree):
        if line not in skipped:
            yield Mutant(file, line, what, lines[line - 1].strip(), module)


if __name__ == "__main__":
    sys.exit(main())
