"""The report of a run that has not ended, in a browser on the same machine.

Two addresses and no files: the page, made again when the folder has changed, and a small JSON status that it asks for.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fasteraa.errors import FasterAAError, RunError, reason
from fasteraa.report.page import Options, make_page
from fasteraa.report.run_record import check_is_run, status, version
from fasteraa.runtime.run_folder import RunFolder

HOST = "127.0.0.1"
HTML, JSON = "text/html; charset=utf-8", "application/json"
Answer = tuple[int, str, str]  # status, type, content


class Site:
    """Answers for one run folder."""

    def __init__(self, run: Path, options: Options):
        check_is_run(RunFolder(run))
        self._run, self._options = run, options
        self._lock = threading.Lock()
        self._made: tuple[str, str] | None = None  # version, page

    def answer(self, path: str) -> Answer:
        pages: dict[str, Callable[[], Answer]] = {"/": self._page, "/status.json": self._status}
        page = pages.get(path.split("?", 1)[0])
        return (404, "text/plain", "there is a page at / and a status at /status.json\n") if page is None else page()

    def _page(self) -> Answer:
        with self._lock:
            now = version(self._run)
            if self._made is None or self._made[0] != now:
                try:
                    self._made = now, make_page(self._run, self._options, live=True)
                except FasterAAError as error:
                    return 500, HTML, _trouble(str(error))
            return 200, HTML, self._made[1]

    def _status(self) -> Answer:
        try:
            return 200, JSON, json.dumps(status(self._run))
        except FasterAAError as error:
            return 500, JSON, json.dumps({"error": str(error), "version": version(self._run)})


def _trouble(text: str) -> str:
    return (
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="5">'
        f'<title>fasteraa report</title><link rel="icon" href="data:,"><p>{escape(text)}</p></html>\n'
    )


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is no error of ours; anything else is shown as usual."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def make_server(run: Path, port: int, options: Options | None = None) -> ThreadingHTTPServer:
    """A server on this machine's own address, where no other machine can reach it; port 0 takes a free one."""
    site = Site(run, options or Options())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(with_body=True)

        def do_HEAD(self) -> None:
            self._send(with_body=False)

        def _send(self, with_body: bool) -> None:
            code, kind, content = site.answer(self.path) if self._asked_here() else _ELSEWHERE
            body = content.encode()
            with suppress(ConnectionError):  # who asked has gone
                self.send_response(code)
                for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *_HEADERS):
                    self.send_header(name, value)
                self.end_headers()
                if with_body:
                    self.wfile.write(body)

        def _asked_here(self) -> bool:
            """A page of somebody else must not read this one by giving our address a name of its own."""
            host = self.headers.get("Host", "").rsplit(":", 1)[0]
            return host in (HOST, "localhost")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    try:
        return _Server((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise RunError(f"port {port} of {HOST} cannot be served ({why}): choose another with --port") from error


_ELSEWHERE: Answer = (403, "text/plain", "this page is only for the machine that serves it\n")
_HEADERS = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"))
