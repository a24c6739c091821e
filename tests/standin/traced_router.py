"""The router, with every call of its own functions written down: `python -m
tests.standin.traced_router CONFIG.json`.

At its end it writes the calls into the file `$ROUTER_TRACE`, a line each, in order:
`toolkit/router/data_plane.py:DataPlane.serve`. Only functions of `toolkit/` are in it. Meanwhile
`$ROUTER_TRACE.first` grows by a line when one is called for the first time.
"""

import os
import runpy
import sys
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = f"{Path(__file__).resolve().parents[2]}/"
OURS = f"{ROOT}toolkit/"


def main() -> None:
    calls: list[str] = []
    names: dict[Any, str | None] = {}
    first = os.open(f"{os.environ['ROUTER_TRACE']}.first", os.O_WRONLY | os.O_CREAT, 0o600)

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        try:
            name = names[code]
        except KeyError:
            ours = code.co_filename.startswith(OURS)
            name = f"{code.co_filename.removeprefix(ROOT)}:{code.co_qualname}" if ours else None
            names[code] = name
            if ours:
                os.write(first, f"{name}\n".encode())
        if name is not None:
            calls.append(name)

    sys.setprofile(note)
    try:
        runpy.run_module("toolkit.router", run_name="__main__", alter_sys=True)
    finally:
        sys.setprofile(None)
        Path(os.environ["ROUTER_TRACE"]).write_text("\n".join(calls))


if __name__ == "__main__":
    main()
