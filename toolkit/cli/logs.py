"""`toolkit logs`."""

from __future__ import annotations

from pathlib import Path

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
    offsets = {}
    for file in files:
        data = file.read_bytes()
        offsets[file] = len(data)
        tail = data.decode("utf-8", "replace").splitlines()
        for line in tail[max(0, len(tail) - lines) :]:
            print(f"{file.stem}: {line}" if prefix else line)
    if follow:
        _follow(offsets, prefix)


def _follow(offsets: dict[Path, int], prefix: bool) -> None:
    import time

    rest: dict[Path, bytes] = {}
    try:
        while True:
            for file in offsets:
                with file.open("rb") as stream:
                    stream.seek(offsets[file])
                    data = stream.read()
                offsets[file] += len(data)
                *whole, rest[file] = (rest.get(file, b"") + data).split(b"\n")
                for line in whole:
                    text = line.decode("utf-8", "replace")
                    print(f"{file.stem}: {text}" if prefix else text, flush=True)
            time.sleep(0.3)
    except KeyboardInterrupt:
        return
