"""Puts packages into the environment, by uv or by pip: output to a log file, a sign of life on
screen, and failures told in plain words."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Iterator, List, Sequence, Tuple

from toolkit.setup import say
from toolkit.setup.layout import SetupLayout, tool_environment

UV = "uv==0.13.8"
HEARTBEAT_S = 20.0
_SHOWN = 100  # characters of the tool's own line in a sign of life

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
    (
        ("No matching distribution found for torch", "ResolutionImpossible"),
        "No index here has the CPU build of PyTorch. PyPI's own build (3 GB more) does as well: "
        "`.venv/bin/python -m pip install torch==VERSION`, with the version of "
        "toolkit/setup/cpu.lock but without +cpu, then run the command again.",
    ),
)


def explain(output: str) -> str:
    """A failure in plain words; the tool's last lines where nothing better is known."""
    for signs, meaning in _CAUSES:
        if any(sign in output for sign in signs):
            return meaning
    return "pip said:\n    " + "\n    ".join(output.strip().splitlines()[-6:])


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
    """Install packages, and nothing that they need: by uv, or by pip where uv does not get them.

    Raises:
        SetupError: none of them did, and why.
    """
    output = ""
    for way in _ways(layout):
        status, output = logged(layout, [*way, "--no-deps", *arguments])
        if status == 0:
            return
    raise say.SetupError(f"{explain(output)}\n(The whole story: {layout.log})")


def _ways(layout: SetupLayout) -> Iterator[List[str]]:
    """Commands that install packages, the quickest first.

    uv reads nothing of what pip is configured with, and pip does not know where PyTorch keeps its
    CPU builds. So neither does for every machine.
    """
    python, uv = str(layout.python), layout.venv / "bin" / "uv"
    pip = [
        python, "-m", "pip", "install", "--no-input", "--progress-bar", "off",
        "--disable-pip-version-check", "--no-warn-script-location",
    ]  # fmt: skip
    if uv.exists() or logged(layout, [*pip, "--no-deps", UV])[0] == 0:
        # A copy: whoever edits an installed file to look at something must not edit uv's cache.
        words = [str(uv), "pip", "install", "--python", python, "--link-mode", "copy"]
        words += ["--compile-bytecode"]
        folders = os.environ.get("PIP_FIND_LINKS", "").split()
        yield [*words, *(f"--find-links={folder}" for folder in folders)]
        yield [*words, "--torch-backend", "cpu"]
    yield pip
