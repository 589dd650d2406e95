"""A real browser: Chromium without a window, driven through its DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page of a browser. Errors, messages of the content security policy and requested addresses are collected."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def connect() -> None:  # the browser reads from descriptor 3 and writes to 4
            high = [os.dup(to_browser), os.dup(from_browser)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        options = "--headless --no-sandbox --disable-gpu --remote-debugging-pipe --no-first-run --hide-scrollbars"
        command = [
            CHROMIUM,
            *options.split(),
            "--disable-background-networking",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            command, close_fds=False, preexec_fn=connect, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, None
        self.errors: list[str] = []
        self.requested: list[str] = []
        targets = self._send("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._send(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def open(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open an address in a window of this size; forgets what was collected."""
        self.errors.clear()
        self.requested.clear()
        self._send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", features=[scheme])
        self._send("Page.navigate", url=address)

    def send_headers(self, headers: dict[str, str]) -> None:
        """Send these headers with every request from now on."""
        self._send("Network.setExtraHTTPHeaders", headers=headers)

    def run(self, script: str) -> Any:
        """Evaluate an expression, or await a promise, in the page."""
        answer = self._send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 20.0) -> Any:
        """Wait until an expression is true in the page, and return its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(f"document.body && ({condition})")):
            assert time.monotonic() < deadline, (condition, self.errors, self.run("document.body.innerText")[:1500])
            time.sleep(0.03)
        return value

    def texts(self, selector: str) -> list[str]:
        """Return the visible text of all elements that match."""
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText.trim())")

    def screenshot(self, path: Path) -> None:
        """Write the whole page as a PNG."""
        size = self._send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self._send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def _send(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _receive(self) -> Any:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], 60)
            part = os.read(self._read, 1 << 20) if ready else b""
            assert part, "the browser does not answer"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        self._collect(message.get("method", ""), message.get("params", {}))
        return message

    def _collect(self, method: str, values: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requested.append(values["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(values["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.errors.append(f"{values['entry']['text']} {values['entry'].get('url', '')}")


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """A browser with a new profile in this folder."""
    browser = Browser(folder / "profile")
    try:
        yield browser
    finally:
        browser.close()
