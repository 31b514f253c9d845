"""A headless Chromium, driven over its own pipe: no driver, no library, no open port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
# Chromium reads commands from descriptor 3 and answers on 4; a parent cannot be sure that both are free.
LAUNCH = (
    "import fcntl, os, sys; commands, answers = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3]); "
    "os.dup2(commands, 3); os.dup2(answers, 4); os.execv(sys.argv[3], sys.argv[3:])"
)
PATIENCE = 30.0  # seconds for any one answer, on a busy machine


def find_chromium() -> str | None:
    """Return the browser's path, or None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one page. `events` keeps what the page did: console, exceptions, requests."""

    def __init__(self, binary: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="kmifqe-chromium-")
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's own refuses to run as root
        command = [binary, *FLAGS, *sandbox, f"--user-data-dir={self._folder}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", LAUNCH, str(read_commands), str(write_answers), *command],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = ""
        try:
            self.call("Browser.close")
            self._process.wait(timeout=10)
        except (OSError, EOFError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to one command of the DevTools protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        number = self._number
        answer = self._wait(lambda found: found.get("id") == number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, page: Path) -> None:
        """Load a file and wait until its scripts have run; forget what earlier pages did."""
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.until("document.readyState === 'complete' && document.documentElement.dataset.ready === 'true'")

    def js(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, promises awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(
                answer["exceptionDetails"].get("exception", {}).get("description", "exception")
            )
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript condition holds."""
        end = time.monotonic() + PATIENCE
        while not self.js(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise TimeoutError(condition)
            time.sleep(0.02)

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Set the window's inside, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )

    def prefer(self, scheme: str) -> None:
        """Say which colours the reader's system prefers: light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def key(self, name: str) -> None:
        """Press and release a key."""
        text = {"Enter": "\r", " ": " "}.get(name)
        code = {"Enter": 13, " ": 32, "Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38}
        code |= {"ArrowRight": 39, "ArrowDown": 40}
        both = {"key": name, "code": "Space" if name == " " else name, "windowsVirtualKeyCode": code[name]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **both, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **both)

    def click(self, selector: str, *, at: tuple[float, float] = (0.5, 0.5)) -> None:
        """Scroll to an element and click on it with the mouse."""
        self._mouse(selector, at, ("mouseMoved", "mousePressed", "mouseReleased"))

    def hover(self, selector: str, *, at: tuple[float, float] = (0.5, 0.5)) -> None:
        """Scroll to an element and move the mouse over it."""
        self._mouse(selector, at, ("mouseMoved",))

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write a PNG of the page, all of it unless told."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        """Return the page as its print."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def _mouse(self, selector: str, at: tuple[float, float], kinds: tuple[str, ...]) -> None:
        x, y = self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); const r = e.getBoundingClientRect();"
            f"return [r.left + {at[0]} * r.width, r.top + {at[1]} * r.height]; }})()"
        )
        for kind in kinds:
            pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def _wait(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            while b"\0" not in self._buffer:
                if not select.select([self._answers], [], [], PATIENCE)[0]:
                    raise TimeoutError("the browser does not answer")
                block = os.read(self._answers, 1 << 20)
                if not block:
                    raise EOFError("the browser has ended")
                self._buffer += block
            raw, self._buffer = self._buffer.split(b"\0", 1)
            message: dict[str, Any] = json.loads(raw)
            if wanted(message):
                return message
            if "method" in message:
                self.events.append(message)
