"""The command line: parse, call the same public function as from Python, print."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; a user's mistake ends with one line and exit code 2 (Ctrl-C: 130), never with a traceback."""
    from fasteraa.cli.app import app
    from fasteraa.errors import FasterAAError

    try:
        app()
    except FasterAAError as error:
        print(f"fasteraa: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        sys.exit(1)
