"""`toolkit restart`."""

import typer

from toolkit.cli.meant import RUN, operator


def restart(
    workers: list[str] = typer.Argument(None, help="Workers' names; in their place: --rolling."),
    rolling: bool = typer.Option(
        False, "--rolling", help="All workers of this host that decode, in turn."
    ),
    prefill: bool = typer.Option(False, "--prefill", help="With --rolling: prefill workers too."),
    deadline: float = typer.Option(120.0, help="Seconds that each may take to be empty."),
    force: bool = typer.Option(
        False, "--force", help="Restart a worker that is not empty by then."
    ),
    run: str = RUN,
) -> None:
    """Restart workers one after the other under load: each is drained, ended, started, and used
    again before the next one's turn, by the routers of all hosts. It ends at the first that does
    not get empty."""
    import time

    if bool(workers) == rolling:
        raise typer.BadParameter("name workers, or give --rolling", param_hint="WORKERS")
    if prefill and not rolling:
        raise typer.BadParameter("goes with --rolling", param_hint="--prefill")
    at = operator(run)
    names = list(workers or ())
    if rolling:
        roles = ("decode", "plain", *(("prefill",) if prefill else ()))
        names = [name for role in roles for name in at.workers(role) if at.starts(name)]
        if not names:
            print("no such worker is started by this host's launcher")
    for name in names:
        at.check_own(name)
    for name in names:
        done = at.drain(name, deadline)
        print(done)
        if not done.empty and not force:
            at.undrain(name)
            print(f"{name}: not restarted; give it longer (--deadline), or --force")
            raise typer.Exit(1)
        begin = time.monotonic()
        try:
            at.restart(name)
        finally:
            unaware = at.undrain(name)
        for router, why in unaware.items():
            print(f"{name}: router {router}: {why}")
        print(f"{name}: restarted in {time.monotonic() - begin:.1f} s, gets requests again")
