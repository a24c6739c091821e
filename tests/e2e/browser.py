"""A headless Chromium, driven over its DevTools pipe with nothing but the standard library."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
)
PACKAGE = "chromium-headless-shell"  # Debian's
WAIT_LIMIT_S = 60.0
"""It is read from disk, and starts, beside workers that take every core."""


def find() -> str | None:
    """The program to start: $TOOLKIT_BROWSER, or the first known name on PATH."""
    given = os.environ.get("TOOLKIT_BROWSER")
    return given or next(filter(None, map(shutil.which, NAMES)), None)


@dataclass
class Page:
    """One tab. `events` holds what the browser reported since the page was opened."""

    process: subprocess.Popen[bytes]
    to_browser: int
    from_browser: int
    log: Path
    session: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    _number: int = 0
    _rest: bytes = b""

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One DevTools command and its result; RuntimeError with the browser's own words."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to_browser, data) :]
        while True:
            answer = self._message(time.monotonic() + WAIT_LIMIT_S)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, path: Path, *, width: int, dark: bool, height: int = 900) -> None:
        """Loads a file in a window of that width and colour scheme, up to its `load` event."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self._navigate(path.resolve().as_uri())

    def go(self, url: str) -> None:
        """Loads a page from a server, up to its `load` event."""
        self.events.clear()
        self._navigate(url)

    def _navigate(self, url: str) -> None:
        went = self.call("Page.navigate", url=url)
        if "errorText" in went:
            raise RuntimeError(f"{url}: {went['errorText']}")
        deadline = time.monotonic() + WAIT_LIMIT_S
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._message(deadline))

    def evaluate(self, expression: str, wait: bool = False) -> Any:
        """The value of a JavaScript expression (JSON kinds only); with `wait`, what its promise
        comes to."""
        got = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=wait
        )
        if "exceptionDetails" in got:
            raise RuntimeError(json.dumps(got["exceptionDetails"]))
        return got["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        got = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(got["data"]))

    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself included."""
        sent = (e for e in self.events if e.get("method") == "Network.requestWillBeSent")
        return [e["params"]["request"]["url"] for e in sent]

    def complaints(self) -> list[str]:
        """Console warnings and errors, uncaught exceptions and log entries of the browser."""
        found = []
        for event in self.events:
            name, what = event.get("method"), event.get("params", {})
            kind = what.get("type") or what.get("entry", {}).get("level")
            if name == "Runtime.exceptionThrown" or (
                name in ("Runtime.consoleAPICalled", "Log.entryAdded")
                and kind in ("error", "warning", "assert")
            ):
                found.append(json.dumps(what))
        return found

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self.from_browser], [], [], deadline - time.monotonic())
            data = os.read(self.from_browser, 1 << 20) if ready else b""
            if not data:
                said = self.log.read_bytes()[-2000:].decode(errors="replace")
                raise RuntimeError(f"the browser is silent (exit {self.process.poll()}): {said}")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


@contextmanager
def browser(program: str, folder: Path) -> Iterator[Page]:
    """A started browser with one empty page; its profile and log lie in `folder`."""
    ours_in, theirs_out = os.pipe()
    theirs_in, ours_out = os.pipe()
    command = [
        program, "--headless", "--disable-gpu", "--no-first-run", "--no-default-browser-check",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--disable-quic", "--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe",
        f"--user-data-dir={folder / 'browser'}", "about:blank",
    ]  # fmt: skip
    if os.geteuid() == 0:
        command.insert(1, "--no-sandbox")  # Chromium's own condition for running as root
    if shutil.disk_usage("/dev/shm").total < 256 << 20:
        command.insert(1, "--disable-dev-shm-usage")  # containers often have 64 MiB there

    def place_pipes() -> None:
        # The protocol speaks on 3 and 4; go by way of free numbers, since ours may be those.
        free = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]
        os.dup2(free[0], 3)
        os.dup2(free[1], 4)

    log_path = folder / "browser.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, close_fds=False,
            preexec_fn=place_pipes, start_new_session=True,
        )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    page = Page(process, ours_out, ours_in, log_path)
    try:
        target = page.call("Target.createTarget", url="about:blank")["targetId"]
        attached = page.call("Target.attachToTarget", targetId=target, flatten=True)
        page.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        yield page
    finally:
        page.session = ""
        try:
            page.call("Browser.close")
            process.wait(10)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        os.close(ours_in)
        os.close(ours_out)
