"""A deployment that lives as long as the benchmark does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.bench.errors import BenchError

if TYPE_CHECKING:
    from toolkit.launch.running import Running


@contextmanager
def hosted(path: Path, run_dir: Path | None = None) -> Iterator[Running]:
    """Start the deployment of a file, and stop it on the way out.

    Raises BenchError when it does not come up, and when a worker was restarted meanwhile: then
    what was measured is no result.
    """
    from toolkit.launch.errors import LaunchError
    from toolkit.launch.resolve import resolve
    from toolkit.launch.running import running
    from toolkit.settings.load import load_deployment

    try:
        plan = resolve(load_deployment(path))
        with running(plan, run_dir) as deployment:
            yield deployment
            restarted = [f"{w.name} ({w.restarts} x)" for w in deployment.workers if w.restarts]
    except LaunchError as error:
        raise BenchError(f"{path} did not start:\n{error}") from error
    if restarted:
        raise BenchError(f"workers died and were restarted: {', '.join(restarted)}")
