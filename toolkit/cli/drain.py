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
    """Empty a worker: no new requests, those that run move to others or are waited for.

    Exit status 1 when something is left; then --stop ends nothing, but with --force.
    """
    if undo and (stop or force):
        raise typer.BadParameter("goes alone, without --stop and --force", param_hint="--undo")
    at = operator(run)
    if undo:
        at.start(worker)
        at.undrain(worker)
        print(f"{worker}: gets requests again")
        return
    done = at.drain(worker, deadline)
    print(done)
    if stop and (force or not done.left):
        at.stop(worker)
        print(f"{worker}: stopped (toolkit drain {worker} --undo starts it)")
    if done.left:
        raise typer.Exit(1)
