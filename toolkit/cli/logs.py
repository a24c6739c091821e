"""`toolkit logs`."""

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

import typer


def logs(
    name: str = typer.Argument(None, help="Process (prefill-0, router, ...); default: all."),
    run: str = typer.Option(
        None, help="Path or name of a run folder, or a deployment's name; default: what lives."
    ),
    lines: int = typer.Option(20, "--lines", "-n", help="How many last lines of each."),
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on as lines come."),
) -> None:
    """Print the logs of a run."""
    from toolkit.launch import runs

    folder = runs.to_read(run).folder
    files = sorted(folder.glob("*.log"))
    if name is not None:
        known = ", ".join(f.stem for f in files)
        files = [f for f in files if f.stem == name]
        if not files:
            print(f"no log {name!r} in {folder}; there are: {known}")
            raise typer.Exit(1)
    prefix = len(files) > 1
    streams: dict[Path, BinaryIO] = {}
    for file in files:
        streams[file] = file.open("rb")
        tail = streams[file].read().decode("utf-8", "replace").splitlines()
        for line in tail[max(0, len(tail) - lines) :]:
            print(f"{file.stem}: {line}" if prefix else line, flush=True)
    if follow:
        _follow(streams, prefix)


def _follow(streams: dict[Path, BinaryIO], prefix: bool) -> None:
    import time

    rest: dict[Path, bytes] = {}
    try:
        while True:
            for file in streams:
                data, streams[file] = _news(file, streams[file])
                *whole, rest[file] = (rest.get(file, b"") + data).split(b"\n")
                for line in whole:
                    text = line.decode("utf-8", "replace")
                    print(f"{file.stem}: {text}" if prefix else text, flush=True)
            time.sleep(0.3)
    except KeyboardInterrupt:
        return


def _news(file: Path, stream: BinaryIO) -> tuple[bytes, BinaryIO]:
    """What came since the last look, and the stream to look at next: a log that has rotated is
    read to its end, then the ones after it."""
    data = stream.read()
    mine = os.fstat(stream.fileno())
    newer: list[Path] = []
    for number in range(1000):
        path = file.with_name(f"{file.name}.{number}") if number else file
        try:
            if os.path.samestat(path.stat(), mine):
                break
        except OSError:
            break  # ours is gone, or between two names: the next look tells
        newer.insert(0, path)
    if not newer:
        return data, stream
    data += stream.read()  # what came before it was renamed
    for path in newer:
        with contextlib.suppress(OSError):
            opened = path.open("rb")
            stream.close()
            stream = opened
            data += stream.read()
    return data, stream
