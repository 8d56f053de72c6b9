"""Rewrite the parts of the docs that are made from the code. `--check` only says whether they are stale."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def ops_table() -> str:
    from fasteraa.cli.tables import OPS_COLUMNS, markdown_table, op_rows

    return markdown_table(OPS_COLUMNS, op_rows())


def export_table() -> str:
    from fasteraa.cli.tables import markdown_table
    from fasteraa.export.fidelity import table

    return markdown_table(*table())


def runner_settings() -> str:
    from fasteraa.cli.tables import markdown_table
    from fasteraa.train.runner import SETTINGS

    return markdown_table(("setting", "what it says"), [(f"`{name}`", text) for name, text in SETTINGS.items()])


def cli_help() -> str:
    """Every command with its arguments and options (in our own words, not in those of one version of Typer)."""
    import typer

    from fasteraa.cli.app import app

    def pages(command: Any, path: str) -> list[str]:
        lines = [f"## `{path}`", command.help.strip().split("\n\n")[0]]
        parts = [row for parameter in command.params if (row := _parameter(parameter))]
        if parts:
            lines.append("\n".join(parts))
        found = ["\n\n".join(lines)]
        for name in command.list_commands(None) if hasattr(command, "commands") else ():
            found += pages(command.commands[name], f"{path} {name}")
        return found

    return "\n\n".join(pages(typer.main.get_command(app), "fasteraa"))


def _parameter(parameter: Any) -> str | None:
    if "--help" in parameter.opts:
        return None
    if parameter.param_type_name == "argument":
        name = parameter.name.upper()
        names = name if parameter.required else f"[{name}]"
    else:
        names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    shown = f" (default: {default})" if default not in (None, False, ()) and not callable(default) else ""
    return f"- `{names}`: {parameter.help}{shown}"


def python_reference() -> str:
    found: str = tool("reference").reference()
    return found


def example(name: str) -> str:
    """`STEM-PART`: the imports of examples/STEM.py and its function or class PART, so that what is read was tested."""
    stem, _, part = name.partition("-")
    source = (ROOT / "examples" / f"{stem}.py").read_text(encoding="utf-8")
    body = ast.parse(source).body
    known = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    if part not in known:
        raise LookupError(f"examples/{stem}.py has no part {part!r}; it has {', '.join(known)}")
    shown = next(node for node in body if getattr(node, "name", None) == part)
    used = {node.id for node in ast.walk(shown) if isinstance(node, ast.Name)}
    lines = source.splitlines()
    imports = [lines[node.lineno - 1] for node in body if _imports(node) & used]
    settings = [lines[node.lineno - 1] for node in body if isinstance(node, ast.Expr) and "environ" in ast.dump(node)]
    if settings:  # which a package reads when it is imported
        imports = ["import os", "", *settings, "", *imports]
    code = "\n".join([*imports, "", "", *lines[shown.lineno - 1 : shown.end_lineno]])
    return f"```python\n{code}\n```"


def _imports(node: ast.stmt) -> set[str]:
    """The names that an import brings."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return set()
    return {alias.asname or alias.name.split(".")[0] for alias in node.names}


def tool(name: str) -> Any:
    """A neighbour of this file; the folder is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def results_index() -> str:
    """The folders of results/, by the titles of their pages."""
    found = []
    for page in sorted(ROOT.glob("results/*/README.md")):
        title = page.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        found.append(f"- [{title}](../{page.relative_to(ROOT).as_posix()})")
    return "\n".join(found)


def results_errors() -> str:
    """The errors that a comparison printed, seed by seed, the lowest first."""
    from fasteraa.cli.tables import markdown_table

    text = (ROOT / "results" / "defaults" / "reduced-cifar10.json").read_text(encoding="utf-8")
    errors: dict[str, dict[str, float]] = json.loads(text)["errors"]
    seeds = sorted({seed for by_seed in errors.values() for seed in by_seed})
    labels = sorted(errors, key=lambda label: errors[label][seeds[0]])
    rows = [
        [label, *(f"{errors[label][seed]:.2f}" if seed in errors[label] else "" for seed in seeds)] for label in labels
    ]
    return markdown_table(["policy", *(f"error %, seed {seed}" for seed in seeds)], rows)


def quality_table() -> str:
    """Mean errors by policy and data set, with the number of runs; the best mean rank first."""
    from fasteraa.cli.tables import markdown_table

    found = json.loads((ROOT / "results" / "quality" / "table.json").read_text(encoding="utf-8"))
    means = {(line["label"], line["data"]): line["ours"] for line in found["lines"] if line["ours"]}
    sets = list(dict.fromkeys(data for _, data in means))
    lowest = {data: min(each["mean"] for (_, on), each in means.items() if on == data) for data in sets}

    def cell(label: str, data: str) -> str:
        if (label, data) not in means:
            return ""
        mean, runs = (means[label, data][name] for name in ("mean", "n"))
        return (f"**{mean:.2f}**" if mean == lowest[data] else f"{mean:.2f}") + f" ({runs})"

    rows = [
        [row["label"], *(cell(row["label"], data) for data in sets), f"{row['rank']:.2f}"] for row in found["standings"]
    ]
    return markdown_table(["policy", *sets, "mean rank"], rows)


def results_counts() -> str:
    text: str = tool("counts").table()
    return text


def readme_outputs() -> str:
    text: str = tool("readme").outputs()
    return text


def readme_where() -> str:
    text: str = tool("readme").where()
    return text


def readme_table() -> str:
    text: str = tool("readme").table()
    return text


def unseen_cuts() -> str:
    """Errors by the independent loop: summary, then set by set."""
    sys.path.insert(0, str(Path(__file__).parent))  # it imports others of this folder
    try:
        content = json.loads((ROOT / "results" / "unseen" / "independent.json").read_text(encoding="utf-8"))
        return "\n".join(tool("independent").table(content)).rstrip()
    finally:
        sys.path.pop(0)


MADE: dict[str, Callable[[], str]] = {
    "readme-outputs": readme_outputs,
    "readme-table": readme_table,
    "readme-where": readme_where,
    "ops-table": ops_table,
    "export-table": export_table,
    "cli-help": cli_help,
    "python-reference": python_reference,
    "results-counts": results_counts,
    "results-index": results_index,
    "unseen-cuts": unseen_cuts,
    "results-errors": results_errors,
    "quality-table": quality_table,
    "runner-settings": runner_settings,
}


def made(name: str) -> str:
    return example(name.removeprefix("example-")) if name.startswith("example-") else MADE[name]()


def refreshed(text: str) -> str:
    """The text with everything between `<!-- made: NAME -->` and `<!-- end -->` made again."""

    def make(match: re.Match[str]) -> str:
        return f"<!-- made: {match[1]} -->\n{made(match[1])}\n<!-- end -->"

    return re.sub(r"<!-- made: ([\w-]+) -->\n.*?<!-- end -->", make, text, flags=re.DOTALL)


def stale(write: bool) -> list[Path]:
    found = []
    for path in sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*/README.md"), ROOT / "README.md"]):
        old = path.read_text(encoding="utf-8")
        new = refreshed(old)
        if new != old:
            found.append(path)
            if write:
                path.write_text(new, encoding="utf-8")
    return found


if __name__ == "__main__":
    check = "--check" in sys.argv
    write = not check
    for path in [*stale(write), *tool("pictures").stale(write), *tool("readme").stale(write)]:
        print(("stale: " if check else "rewritten: ") + str(path.relative_to(ROOT)))
