"""`toolkit router CONFIG.json`."""

from pathlib import Path

import typer


def router(config: Path = typer.Argument(..., help="router.json (see toolkit/router).")) -> None:
    """Run the router alone, over workers that run already."""
    import runpy
    import sys

    sys.argv = ["toolkit.router", str(config)]
    runpy.run_module("toolkit.router", run_name="__main__")
