"""What some searches took and found, as a Markdown table: python tools/runs.py RUN_FOLDER ..."""

import json
import sys
from pathlib import Path

from fasteraa.policy import Policy
from fasteraa.report.summary import changes

COLUMNS = ("run", "seconds of searching", "GPU hours", "peak memory", "distance, first to last epoch", "policy")


def row(folder: Path) -> tuple[str, ...]:
    policy = Policy.load(folder / "policy.json")
    epochs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seconds, memory = epochs[-1]["seconds"], policy.provenance["peak_memory_mib"]
    return (
        folder.name,
        f"{seconds:.1f}",
        f"{seconds / 3600:.2g}",
        "" if memory is None else f"{memory:,} MiB",
        f"{epochs[0]['distance']:.2f} to {epochs[-1]['distance']:.2f}",
        policy.hash[:19],
    )


def invert(folder: Path) -> str:
    """How often an image meets invert, the plainest harm, in a stage."""
    start, found = (Policy.load(folder / name) for name in ("start.json", "policy.json"))
    before, after = next((a, b) for name, a, b in changes(start, found) if name == "invert")
    return f"{folder.name}: invert {before:.1%} to {after:.1%}"


if __name__ == "__main__":
    folders = [Path(name) for name in sys.argv[1:]]
    for cells in (COLUMNS, ("---",) * len(COLUMNS), *map(row, folders)):
        print("| " + " | ".join(cells) + " |")
    print("", *map(invert, folders), sep="\n")
