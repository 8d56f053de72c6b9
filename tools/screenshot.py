"""Photograph the report of the recorded search (docs/readme/first) with Chromium, for the README.

`python tools/screenshot.py` writes docs/readme/report.jpg and the digest of what the page is made of. The tests need no
browser to notice that the picture is stale: they compare the digest.
"""

from __future__ import annotations

import contextlib
import hashlib
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


def digest() -> str:
    """Of the page's own files and of the search that it shows."""
    parts = [*sorted((ROOT / "src" / "fasteraa" / "report").glob("page.*")), *sorted((FOLDER / "first").glob("*.json"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in parts)).hexdigest()


def photograph() -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        sys.exit("needs Chromium")
    with TemporaryDirectory() as folder, contextlib.chdir(folder):  # the page shows the path of the run as it is given
        shot = Path(folder) / "shot.png"
        shutil.copytree(FOLDER / "first", Path("runs/first"))
        write_report(Path("runs/first"), Path("report.html"))
        where = [f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={shot}"]
        address = (Path(folder) / "report.html").as_uri()
        subprocess.run([program, *FLAGS.split(), *where, address], check=True, capture_output=True, timeout=120)
        Image.open(shot).convert("RGB").resize((WIDTH * 5 // 7, HEIGHT * 5 // 7)).save(PICTURE, quality=85)
    DIGEST.write_text(digest() + "\n", encoding="utf-8")


if __name__ == "__main__":
    photograph()
