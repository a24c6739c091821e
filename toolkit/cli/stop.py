"""`toolkit stop`."""

from typing import Any

import typer


def stop(
    run: str = typer.Option(
        None, help="Path or name of a run folder, or a deployment's name; default: what lives."
    ),
    now: bool = typer.Option(False, "--now", help="Do not wait for requests in flight."),
    timeout: float = typer.Option(120.0, help="Seconds that a drain may take."),
    wait_limit: float = typer.Option(
        20.0, "--wait-limit", "--patience", help="Seconds before what is left is killed."
    ),
) -> None:
    """Drain a run and stop it; what does not stop is killed. Where several live, say which."""
    import signal

    from toolkit.launch import runs, trees
    from toolkit.launch.state import rows_of

    meant = runs.to_stop(run)
    state = meant.state
    launcher = trees.look(state["pid"]) if meant.launched else None
    if launcher is not None:
        trees.send(launcher, signal.SIGTERM)
        gone = _wait(launcher, 0.5 if now else timeout)
        if not gone:
            trees.send(launcher, signal.SIGTERM)  # the second one: at once
            gone = _wait(launcher, wait_limit)
        if not gone:
            trees.send(launcher, signal.SIGKILL)
    # The guard does the same; this also covers a guard that somebody killed.
    leaders = {row["pid"]: row["start_ticks"] for row in rows_of(state) if row["pid"]}
    left = trees.kill_all(leaders, state["run_id"], spare={state["guard_pid"]})
    if left:
        print(f"could not end {', '.join(str(p.pid) for p in left)}")
        raise typer.Exit(1)
    print(f"{state['name']}: stopped; no process is left")


def _wait(process: Any, timeout: float) -> bool:
    """Wait for another process's end on its pidfd; True when it is gone."""
    import os
    import select

    from toolkit.launch import trees

    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return True
    try:
        if not trees.is_running(process.pid, process.start):
            return True
        return bool(select.select([fd], [], [], timeout)[0])
    finally:
        os.close(fd)
