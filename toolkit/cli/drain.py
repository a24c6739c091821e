"""`toolkit drain`."""

import typer

from toolkit.cli.meant import RUN, operator


def drain(
    worker: str = typer.Argument(..., help="A worker's name, as in toolkit status."),
    stop: bool = typer.Option(False, "--stop", help="End it when it is empty."),
    undo: bool = typer.Option(False, "--undo", help="Let it have requests again, started or not."),
    deadline: float = typer.Option(120.0, help="Seconds until what is left is left where it is."),
    force: bool = typer.Option(False, "--force", help="With --stop: end it with what is left."),
    run: str = RUN,
) -> None:
    """Empty a worker: no new requests, those that run move to others or are waited for. All routers
    do that, on other hosts too.

    Exit status 1 when something is left, or a router does not answer; then --stop ends nothing, but
    with --force.
    """
    if undo and (stop or force):
        raise typer.BadParameter("goes alone, without --stop and --force", param_hint="--undo")
    at = operator(run)
    if stop:
        at.check_own(worker)
    if undo:
        if at.starts(worker):
            at.start(worker)
        for name, why in at.undrain(worker).items():
            print(f"{worker}: router {name}: {why}")
        print(f"{worker}: gets requests again")
        return
    done = at.drain(worker, deadline)
    print(done)
    if stop and (force or done.empty):
        at.stop(worker)
        print(f"{worker}: stopped (toolkit drain {worker} --undo starts it)")
    if not done.empty:
        raise typer.Exit(1)
