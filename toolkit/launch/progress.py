"""Tell a person how the start-up goes: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from toolkit.launch.process import Managed

# What SGLang logs, in order, and what that means; the last one found counts.
STAGES = (
    ("Load weight begin", "loading weights"),
    ("Load weight end", "weights loaded"),
    ("KV Cache is allocated", "KV allocated"),
    ("Capture cuda graph begin", "capturing CUDA graphs"),
    ("Capture cuda graph end", "CUDA graphs captured"),
    ("Uvicorn running on", "warming up"),
    ("The server is fired up", "serving"),
)


def stage_of(log: Path) -> str:
    """How far a starting worker is, by its log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 32768))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    text = text.rsplit("--- toolkit: start", 1)[-1]
    found = [(text.rfind(mark), stage) for mark, stage in STAGES if mark in text]
    return max(found)[1] if found else "importing"


class Reporter(Protocol):
    """Receives what happens; called from the supervisor's thread."""

    def event(self, text: str) -> None:
        """Something worth a line happened."""

    def refresh(self, phase: str, processes: Iterable[Managed]) -> None:
        """The state now; called often."""

    def close(self) -> None:
        """No more calls follow."""


class Quiet:
    """Says nothing (tests, benchmarks)."""

    def event(self, text: str) -> None:
        """Nothing."""

    def refresh(self, phase: str, processes: Iterable[Managed]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class ProgressLines:
    """One plain line per event, with the seconds since the beginning."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def event(self, text: str) -> None:
        """Print it."""
        print(f"[{time.monotonic() - self._begin:6.1f} s] {text}", file=sys.stderr, flush=True)

    def refresh(self, phase: str, processes: Iterable[Managed]) -> None:
        """Nothing: lines come from events."""

    def close(self) -> None:
        """Nothing."""


class LiveProgress:
    """A table that is redrawn in place, events above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._console = Console(stderr=True, highlight=False)
        self._live = RichLive(console=self._console, auto_refresh=False, transient=True)
        self._begin = time.monotonic()
        self._live.start()

    def event(self, text: str) -> None:
        """Print it above the table."""
        from rich.text import Text

        self._console.print(Text(f"[{time.monotonic() - self._begin:6.1f} s] {text}"))

    def refresh(self, phase: str, processes: Iterable[Managed]) -> None:
        """Redraw while something is under way; a settled deployment needs no table."""
        if phase == "ready":
            self._live.update("", refresh=True)
            return
        self._live.update(self._table(phase, processes), refresh=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._live.stop()

    def _table(self, phase: str, processes: Iterable[Managed]) -> Any:
        from rich.table import Table

        title = f"{phase}, {time.monotonic() - self._begin:.0f} s"
        table = Table(title=title, title_justify="left")
        for heading in ("process", "status", "pid", "what"):
            table.add_column(heading)
        colours = {"ready": "green", "failed": "red", "refused": "red"}
        colours |= {"restarting": "yellow", "resting": "yellow", "stuck": "red"}
        for m in processes:
            colour = colours.get(m.status, "cyan")
            table.add_row(m.name, f"[{colour}]{m.status}[/]", str(m.pid or ""), m.note)
        return table


def reporter_for(stream: Any = None) -> Reporter:
    """Live on a terminal, lines otherwise."""
    stream = stream or sys.stderr
    return LiveProgress() if stream.isatty() else ProgressLines()
