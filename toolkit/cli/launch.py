"""`toolkit launch FILE.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from socket import socket

    from toolkit.launch.supervisor import Supervisor


def launch(
    file: str = typer.Argument(..., help="Deployment file, or the name of a shipped recipe."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show and check the plan, then stop."),
    as_json: bool = typer.Option(False, "--json", help="With --dry-run: print the plan as JSON."),
    device: str = typer.Option(None, help="cpu or cuda instead of the file's own device."),
    host: str = typer.Option(None, help="Several hosts: start what belongs to this one."),
    run_dir: Path = typer.Option(None, help="Run folder; default: a new one in $TOOLKIT_RUNS."),
    detach: bool = typer.Option(False, "--detach", "-d", help="Return once it is ready."),
    no_check: bool = typer.Option(False, "--no-check", help="Skip SGLang's own check of flags."),
) -> None:
    """Start a deployment and supervise it until Ctrl-C (twice: at once)."""
    from toolkit.launch import isolation, show
    from toolkit.launch.checks import open_ports, possible
    from toolkit.launch.resolve import resolve
    from toolkit.report import terminal

    if detach and not dry_run:
        _detached(file, device, host, run_dir, no_check)
        return
    deployment = find_deployment(file)
    if device is not None:
        deployment = deployment.on_device(device)
    plan = resolve(deployment, host)
    if as_json:
        _print_json(plan.to_json())
    else:
        terminal.show(terminal.console(), show.summary(plan))
        if dry_run:
            print(show.commands(plan))
            print(f"\n{open_ports.told(plan)}")
    front = isolation.begin(plan) if plan.isolate and not dry_run else []
    problems = possible.quick(plan) if no_check else possible.check(plan, dry_run=dry_run)
    if problems:
        print(possible.shown(problems), file=_stderr())
    if any(p.fatal for p in problems):
        raise typer.Exit(1)
    if not dry_run:
        _run(plan, run_dir, front)
    elif not as_json:
        checked = "ports only" if no_check else "SGLang accepts every flag"
        print(f"\nplan is good ({checked}); dry run, nothing started")


def find_deployment(file: str) -> Any:
    """Load a deployment file, or a shipped recipe by its name."""
    from toolkit.settings.load import load_deployment

    return load_deployment(find_file(file))


def find_file(file: str) -> Path:
    """Where a deployment file, or a shipped recipe of that name, lies."""
    from toolkit.resources import recipes_dir

    path = Path(file)
    if not path.exists() and path.name == file:
        recipe = recipes_dir() / (file if file.endswith(".yaml") else f"{file}.yaml")
        path = recipe if recipe.is_file() else path
    return path


def _run(plan: Any, run_dir: Path | None, front: Sequence[socket]) -> None:
    from toolkit.launch.progress import reporter_for
    from toolkit.launch.state import drop_empty, new_run_dir
    from toolkit.launch.supervisor import Supervisor

    folder = run_dir if run_dir is not None else new_run_dir(plan.name)
    supervisor = Supervisor(plan, folder, reporter_for(), front)
    _stop_on_signals(supervisor)
    try:
        supervisor.run()
    finally:
        if run_dir is None:
            drop_empty(folder)  # refused before anything was written


def _stop_on_signals(supervisor: Supervisor) -> None:
    import signal

    def stop(signum: int, frame: Any) -> None:
        supervisor.request_stop()

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, stop)


def _detached(
    file: str, device: str | None, host: str | None, run_dir: Path | None, no_check: bool
) -> None:
    """Start the same command in the background and wait until it says that it is ready."""
    import os
    import sys

    from toolkit.launch.command import python_env
    from toolkit.launch.detached import Detached
    from toolkit.launch.state import new_run_dir, prepare_run_dir, runs_root

    name = find_deployment(file).name
    folder = run_dir if run_dir is not None else new_run_dir(name)
    prepare_run_dir(folder)
    command = [sys.executable, "-m", "toolkit", "launch", file, "--run-dir", str(folder)]
    command += ["--device", device] if device else []
    command += ["--host", host] if host else []
    command += ["--no-check"] if no_check else []
    launcher = Detached(command, folder, {**os.environ, **python_env()})
    state = launcher.wait_ready()
    if state is None:
        print(launcher.said(), file=_stderr())
        raise typer.Exit(launcher.process.returncode or 1)
    own = folder.name if folder.resolve().parent == runs_root().resolve() else folder.resolve()
    where = ", ".join(state["router_urls"])
    print(f"{state['name']} is ready: {where}  (toolkit stop --run {own} ends it)")


def _print_json(data: Any) -> None:
    import json

    print(json.dumps(data, indent=1, default=str))


def _stderr() -> Any:
    import sys

    return sys.stderr
