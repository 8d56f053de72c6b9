"""Gather the pages of the site into build/pages: docs/ at its top, results/ below, and every file they link to.

The pages are written for a forge, where `../results/...` leads out of docs/; a site has one root, so the links are
rewritten on the way. What is gathered is plain Markdown with a mkdocs.yml: zensical and mkdocs both build it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
GATHERED = ROOT / "build" / "pages"
CODE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1[ \t]*$|`[^`\n]+`", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")


class Link(NamedTuple):
    start: int
    end: int
    file: str  # relative to the page, empty for the page itself
    anchor: str  # without its #


def pages() -> list[Path]:
    """What the site shows."""
    return sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/*.md")])


def without_code(text: str) -> str:
    """The text with code blanked out, at equal length."""
    return CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def links(text: str) -> Iterator[Link]:
    """Links and pictures, without those to other sites and those in code."""
    for match in LINK.finditer(without_code(text)):
        if not re.match(r"\w+:", match[1]):
            yield Link(match.start() + 2, match.end() - 1, match[1], (match[2] or "#")[1:])


def headings(text: str) -> list[str]:
    """The text of each heading, as a reader sees it."""
    found = re.finditer(r"^#+ .*$", _without_blocks(text), flags=re.MULTILINE)
    return [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", match[0].lstrip("# ")).replace("`", "") for match in found]


def _without_blocks(text: str) -> str:
    return CODE.sub(lambda match: match[0] if match[1] is None else re.sub(r"[^\n]", " ", match[0]), text)


def forge_anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def site_anchor(heading: str) -> str:
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def place(path: Path) -> Path:
    """Where a file of the repository lies in the site."""
    relative = path.relative_to(ROOT)
    return relative.relative_to("docs") if relative.parts[0] == "docs" else relative


def rewritten(page: Path, text: str) -> tuple[str, list[Path]]:
    """The page with its links as the site has them, and the files it links to."""
    found, parts, last = [], [], 0
    for link in links(text):
        if not link.file:
            continue
        target = (page.parent / link.file).resolve()
        found.append(target)
        relative = os.path.relpath(place(target), place(page).parent)
        parts += [text[last : link.start], relative, f"#{link.anchor}" if link.anchor else ""]
        last = link.end
    return "".join([*parts, text[last:]]), found


def gather(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    for page in pages():
        text, linked = rewritten(page, page.read_text(encoding="utf-8"))
        put = folder / place(page)
        put.parent.mkdir(parents=True, exist_ok=True)
        put.write_text(text, encoding="utf-8")
        for file in linked:
            if file.suffix != ".md":
                copy = folder / place(file)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)


def nav_entries(nav: Any) -> Iterator[str]:
    """The pages of mkdocs.yml's nav, section by section."""
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from [value] if isinstance(value, str) else nav_entries(value)


if __name__ == "__main__":
    gather(GATHERED)
    print(f"{len(pages())} pages in {GATHERED.relative_to(ROOT)}")
