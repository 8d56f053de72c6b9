"""Photograph the report of the recorded search (docs/readme/first) with Chromium, for the README.

`python tools/screenshot.py` writes docs/readme/report.jpg and the digest of the page. The tests need no browser to
notice that the picture is stale: they make the page and compare the digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from fasteraa.report.page import write_report

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "readme"
PICTURE, DIGEST = FOLDER / "report.jpg", FOLDER / "report.sha256"
WIDTH, HEIGHT = 1400, 1560
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)


def page(folder: Path) -> Path:
    """Made in `folder`: the page shows the path of the run as it is given."""
    with contextlib.chdir(folder):
        shutil.copytree(FOLDER / "first", Path("runs/first"))
        write_report(Path("runs/first"), Path("report.html"))
    return folder / "report.html"


def digest(html: str) -> str:
    """Of words, style and plots; the bytes of pictures differ from one zlib to another, and a version is no picture."""
    kept = re.sub(r"data:image/[^\"]+|fasteraa \d[\w.+]*", "", html)
    return hashlib.sha256(kept.encode()).hexdigest()


def digest_now() -> str:
    with TemporaryDirectory() as folder:
        return digest(page(Path(folder)).read_text(encoding="utf-8"))


def photograph() -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        sys.exit("needs Chromium")
    with TemporaryDirectory() as folder:
        shot, made = Path(folder) / "shot.png", page(Path(folder))
        where = [f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={shot}"]
        line = [program, *FLAGS.split(), *where, made.as_uri()]
        subprocess.run(line, check=True, capture_output=True, timeout=120)
        Image.open(shot).convert("RGB").resize((WIDTH * 5 // 7, HEIGHT * 5 // 7)).save(PICTURE, quality=85)
        DIGEST.write_text(digest(made.read_text(encoding="utf-8")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    photograph()
