"""`toolkit demo`: a real deployment answers, and two policies are compared on it."""

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

Requests = Annotated[int, typer.Option(min=1, help="Requests of each round and policy.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Requests in flight.")]
Rounds = Annotated[
    int, typer.Option(min=2, help="Paired rounds; the intervals come from them, so take 8 or more.")
]
Page = Annotated[
    Path | None, typer.Option(help="HTML page to write [default: demo.html in the run's folder].")
]


def demo(
    requests: Requests = 32, concurrency: Concurrency = 20, rounds: Rounds = 10, page: Page = None
) -> None:
    """Start one prefill and four decode workers on the CPU, ask, compare two policies, stop.

    Its last lines say what was shown and name a page with all figures. The exit status is 0 only
    when every request was answered and every process has ended.
    """
    from toolkit.demo.run import Size
    from toolkit.demo.run import demo as run
    from toolkit.errors import ToolkitError

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        run(Size(requests, concurrency, rounds), page)
    except ToolkitError as error:
        typer.echo(f"\nthe demo failed: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        typer.echo("\nthe demo was interrupted; everything is stopped", err=True)
        raise typer.Exit(130) from None


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM stops the workers as Ctrl-C does."""
    raise KeyboardInterrupt
