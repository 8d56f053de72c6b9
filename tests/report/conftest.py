"""A real browser, spoken to over the DevTools protocol through a pipe."""

import base64
import contextlib
import json
import queue
import shutil
import subprocess
import threading

import pytest

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
)
PATIENCE = 60  # seconds for one answer, on a machine with much to do


class Browser:
    """One page in a headless Chromium: open, ask, press, look."""

    def __init__(self, program, profile):
        command = f"exec {program} {FLAGS} --user-data-dir={profile} --remote-debugging-pipe about:blank 3<&0 4>&1"
        self.process = subprocess.Popen(
            ["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._said, self._number, self._session, self.events = queue.Queue(), 0, None, []
        threading.Thread(target=self._listen, daemon=True).start()
        page = next(t for t in self.do("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.do("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.do(f"{domain}.enable")

    def _listen(self):
        rest = b""
        while chunk := self.process.stdout.read1():
            *whole, rest = (rest + chunk).split(b"\0")
            for message in whole:
                self._said.put(json.loads(message))

    def do(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self.process.stdin.write(json.dumps(message).encode() + b"\0")
        self.process.stdin.flush()
        while True:
            answer = self._said.get(timeout=PATIENCE)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def wait(self, method):
        """Until the event has come."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._said.get(timeout=PATIENCE))

    def open(self, address, width=800, dark=False):
        height, mobile = 900, width < 600
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.do("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.do("Page.navigate", url=address)
        self.wait("Page.loadEventFired")

    def ask(self, expression):
        answer = self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.do("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def complaints(self):
        """What a console would show in red, and every request that left the page."""
        self.ask("1")
        return [
            event
            for event in self.events
            if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        ]

    def asked_for(self):
        self.ask("1")
        asked = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith("data:")]

    def picture(self):
        size = self.do("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.do("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(shot["data"])

    def close(self):
        with contextlib.suppress(Exception):
            self.do("Browser.close")
        self.process.stdin.close()
        self.process.wait(timeout=PATIENCE)
        self.process.stdout.close()


KEYS = {"Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, " ": 32}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs Chromium")
    found = Browser(program, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()
