"""Generated parts of the docs are fresh, links lead somewhere, and the documented commands exist."""

import importlib.util
import re
from pathlib import Path

import pytest

from fasteraa.data import load

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])


def generator():
    return tool("generate")


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_fresh():
    assert generator().stale(write=False) == [], "run `make generate`"


def test_staleness_is_noticed():
    text = "<!-- made: ops-table -->\nold\n<!-- end -->"
    assert generator().refreshed(text) != text


def anchors(path):
    headings = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]*)(#[^)]*)?\)", page.read_text()):
        file, anchor = target
        if file.startswith("http"):
            continue
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{page.name} links to {file}"
        if anchor:
            assert anchor[1:] in anchors(path), f"{page.name} links to {file}{anchor}"


def test_the_table_of_the_runs_comes_from_their_folders():
    folder = ROOT / "results" / "search-h200"
    written = (folder / "README.md").read_text()
    rows = [tool("runs").row(run) for run in sorted(folder.iterdir()) if run.is_dir()]
    assert len(rows) == 4
    for name, seconds, hours, *rest in rows:
        assert re.search(rf"\| {name} \| {seconds} \| {hours} \| [^|]+ \| {re.escape(' | '.join(rest))} \|", written)
    for name in ("cifar-0", "cifar-1", "cifar-2"):
        assert tool("runs").invert(folder / name).split("invert ")[1] in written


def test_the_critics_estimate_moves_while_the_policy_stands_still():
    data = load(None, subset=128, size=8)
    one, two = (tool("critic_norms").estimates(data, "none", 2, seed=0) for _ in range(2))
    assert one == two
    assert len(set(one)) == 2
