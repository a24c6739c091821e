"""`toolkit upgrade`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from toolkit.cli.meant import RUN, operator

if TYPE_CHECKING:
    from toolkit.launch.router_admin import RouterAdmin

app = typer.Typer(no_args_is_help=True, help="Have new code take over while requests run.")

SAY_S = 5.0
STEPS = {
    "rehearsing": "the new code and the configuration are tried",
    "starting": "the new processes are started",
    "replacing": "the new processes take over",
}


@app.callback()
def _only() -> None:
    """So that `router` is a command of its own, however many there are."""


@app.command()
def router(
    drain_s: float = typer.Option(
        None,
        "--drain-s",
        help="Seconds after which what still runs in the former processes is cut.",
        show_default="no limit",
    ),
    run: str = RUN,
    url: str = typer.Option(
        None, help="Where a router takes orders that no launcher has started; in place of --run."
    ),
    admin_key_env: str = typer.Option(None, help="With --url: variable with the admin's key."),
) -> None:
    """Upgrade a router of several processes under load, with the code and the configuration that
    are on the disk now. New relays take new connections, the former ones end with their clients.
    What cannot serve is undone. Several routers of a run are upgraded one after the other, until
    one fails.

    Exit status 1 when it failed, or when --drain-s has cut requests.
    """
    cut = [_upgrade(router, drain_s) for router in _admins(run, url, admin_key_env)]
    if any(cut):
        raise typer.Exit(1)


def _upgrade(router: RouterAdmin, drain_s: float | None) -> int:
    """How many requests were cut. typer.Exit: it failed."""
    import time

    begin = said_at = time.monotonic()
    phase, told, name = "", dict[str, Any](), router.name
    for told in router.upgrade(drain_s):
        now = time.monotonic()
        if told["phase"] != phase:
            phase = told["phase"]
            if phase in STEPS:
                print(f"{name}: {STEPS[phase]}", flush=True)
        elif phase == "ending" and now - said_at > SAY_S:
            said_at = now
            left = f"{told['requests']} requests, {told['connections']} connections"
            print(f"{name}: the former processes have {left}", flush=True)
    took = f"{time.monotonic() - begin:.1f} s"
    if phase == "failed":
        print(f"{name}: not upgraded, the former processes serve on: {told['why']}")
        raise typer.Exit(1)
    if cut := int(told["cut"]):
        print(f"{name}: upgraded in {took}; {cut} requests were cut after {drain_s:g} s")
    else:
        print(f"{name}: upgraded in {took}, no request was cut")
    return cut


def _admins(run: str | None, url: str | None, key_env: str | None) -> list[RouterAdmin]:
    from toolkit.launch.router_admin import RouterAdmin

    if url is None:
        if key_env is not None:
            raise typer.BadParameter("goes with --url", param_hint="--admin-key-env")
        return operator(run).routers
    if run is not None:
        raise typer.BadParameter("give one of them", param_hint="--run, --url")
    key = None
    if key_env is not None:
        import os

        key = os.environ.get(key_env)
        if not key:
            raise typer.BadParameter(f"{key_env} is not set", param_hint="--admin-key-env")
    return [RouterAdmin(url.rstrip("/"), key)]
