"""Runs pip in the environment: output to a log file, a sign of life on screen, and its
failures told in plain words."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import List, Sequence, Tuple

from toolkit.setup import say
from toolkit.setup.layout import SetupLayout, tool_environment

HEARTBEAT_S = 20.0
_SHOWN = 100  # characters of pip's own line in a sign of life

# What pip prints -> what it means to somebody who did not ask for pip.
_CAUSES: Tuple[Tuple[Tuple[str, ...], str], ...] = (
    (("No space left on device",), "The disk is full. Free some space and run the command again."),
    (
        ("Temporary failure in name resolution", "Name or service not known", "getaddrinfo failed"),
        "The package index cannot be found: this machine has no network, or no DNS. Connect it "
        "(or set pip's proxy or index in pip.conf) and run the command again; what was already "
        "installed is kept.",
    ),
    (
        ("Connection refused", "Network is unreachable", "ProxyError", "ConnectTimeoutError"),
        "The package index does not answer. Check the network and pip's proxy settings, then run "
        "the command again; what was already installed is kept.",
    ),
    (
        ("Read timed out", "IncompleteRead", "Connection broken", "ConnectionResetError"),
        "The download broke off. Run the command again: what was already installed is kept.",
    ),
    (
        ("CERTIFICATE_VERIFY_FAILED",),
        "The package index's certificate is not trusted here. Set pip's `cert` to your "
        "organisation's certificates, then run the command again.",
    ),
    (
        ("Permission denied",),
        "A file may not be written. Does another user own .venv? Remove it, or run as that user.",
    ),
)


def explain(output: str) -> str:
    """pip's failure in plain words; its last lines where nothing better is known."""
    for signs, meaning in _CAUSES:
        if any(sign in output for sign in signs):
            return meaning
    return "pip said:\n    " + "\n    ".join(output.strip().splitlines()[-6:])


def pip(layout: SetupLayout, arguments: Sequence[str]) -> Tuple[int, str]:
    """`pip install ARGUMENTS` in the environment. Returns its exit status and its output."""
    command = [
        str(layout.python), "-m", "pip", "install", "--no-input", "--progress-bar", "off",
        "--disable-pip-version-check", "--no-warn-script-location", *arguments,
    ]  # fmt: skip
    return logged(layout, command)


def logged(layout: SetupLayout, command: List[str]) -> Tuple[int, str]:
    """Runs `command`; its output goes to the log, its latest line on screen now and then."""
    live = sys.stdout.isatty()
    lines: List[str] = []
    start = said = time.monotonic()
    with (
        layout.log.open("a") as log,
        subprocess.Popen(
            command,
            cwd=layout.root,
            env=tool_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        log.write(f"$ {' '.join(command)}\n")
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            log.flush()
            lines.append(line)
            now = time.monotonic()
            shown = line.strip()[:_SHOWN]
            if live:
                print(f"\r\033[K  {now - start:4.0f} s  {shown}", end="", flush=True)
            elif now - said > HEARTBEAT_S:
                say.line(f"  {now - start:.0f} s: {shown}")
                said = now
    if live:
        print("\r\033[K", end="", flush=True)
    return process.returncode, "".join(lines)


def install(layout: SetupLayout, arguments: Sequence[str]) -> None:
    """`pip install ARGUMENTS`.

    Raises:
        SetupError: it failed, and why.
    """
    status, output = pip(layout, arguments)
    if status != 0:
        raise say.SetupError(f"{explain(output)}\n(The whole story: {layout.log})")
