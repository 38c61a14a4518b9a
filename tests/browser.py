"""Chromium without a window, driven through its DevTools protocol: opens a page, clicks, types, takes screenshots.

It speaks through a pipe, so that no package and no port is needed.
"""

import base64
import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --remote-debugging-pipe --hide-scrollbars"
).split()
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


class Browser:
    """One page in one browser. `problems`: uncaught errors, console messages and requests for other files."""

    def __init__(self, page: Path, folder: Path, width: int = 1280, height: int = 900) -> None:
        if not CHROMIUM or os.name == "nt":
            pytest.skip("Chromium is not installed: apt-get install chromium")
        self.problems: list[str] = []
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()

        def connect() -> None:  # the protocol reads from 3 and writes to 4
            copies = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(copies[0], 3)
            os.dup2(copies[1], 4)

        command = [CHROMIUM, *OPTIONS, f"--user-data-dir={folder / 'browser'}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, close_fds=False, preexec_fn=connect, **quiet)
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in = os.fdopen(ours_out, "wb", 0), os.fdopen(ours_in, "rb")
        self._number, self._session, self._waiting = 0, None, b""
        (target,) = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.call("Page.navigate", url=page.as_uri())
        self.run("new Promise(r => document.readyState === 'complete' ? r() : addEventListener('load', () => r()))")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._out.close()
        self._in.close()

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Calls a method of the protocol and returns its result; what the page reports meanwhile is collected."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments}
        message |= {"sessionId": self._session} if self._session else {}
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._collect(answer.get("method"), answer.get("params", {}))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            chunk = self._in.read1(2**16)
            assert chunk, "the browser ended"
            self._waiting += chunk
        message, _, self._waiting = self._waiting.partition(b"\0")
        return json.loads(message)

    def _collect(self, method: str | None, event: dict[str, Any]) -> None:
        if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.problems.append(json.dumps(event))
        url = event.get("request", {}).get("url", "") if method == "Network.requestWillBeSent" else ""
        if url and not url.startswith(("data:", "file:")):
            self.problems.append(url)

    def run(self, expression: str) -> Any:
        """Evaluates JavaScript, waits for promises, and returns the value."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that a CSS selector finds."""
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.textContent)")

    def click(self, selector: str) -> None:
        """Clicks with the mouse into the middle of an element."""
        place = f"const box = document.querySelector({json.dumps(selector)})"
        middle = "box.getBoundingClientRect()"
        scroll = "box.scrollIntoView({block: 'center', inline: 'center'})"
        x, y = self.run(
            f"(() => {{ {place}; {scroll}; const b = {middle}; return [b.x + b.width / 2, b.y + b.height / 2] }})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, count: int = 1) -> None:
        """Presses a key."""
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]} | (
            {"text": "\r"} if key == "Enter" else {}
        )
        for _ in range(count):
            self.call("Input.dispatchKeyEvent", type="keyDown", **code)
            self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def resize(self, width: int, height: int) -> None:
        """Changes the size of the window."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, yes: bool = True) -> None:
        """Chooses the dark or the light mode."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if yes else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Writes what the window shows, or the whole page, as PNG or JPEG."""
        kind = {"format": "jpeg", "quality": 85} if path.suffix == ".jpg" else {"format": "png"}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **kind)["data"]
        path.write_bytes(base64.b64decode(data))


def words_of(text: str) -> str:
    """The text that a reader sees."""
    text = re.sub(r"<style>.*?</style>|<[^>]*>", " ", text, flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(text))
