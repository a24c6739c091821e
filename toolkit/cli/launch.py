"""`toolkit launch FILE.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
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
    from toolkit.launch import checks, show
    from toolkit.launch.plan import resolve

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
        wide_console().print(show.summary(plan))
        if dry_run:
            print(show.commands(plan))
    problems = checks.quick(plan) if no_check else checks.check(plan, dry_run=dry_run)
    if problems:
        print(checks.shown(problems), file=_stderr())
    if any(p.fatal for p in problems):
        raise typer.Exit(1)
    if not dry_run:
        _run(plan, run_dir)
    elif not as_json:
        checked = "ports only" if no_check else "SGLang accepts every flag"
        print(f"\nplan is good ({checked}); dry run, nothing started")


def find_deployment(file: str) -> Any:
    """Load a deployment file, or a shipped recipe by its name."""
    from toolkit.launch.deployment import load_deployment

    return load_deployment(find_file(file))


def find_file(file: str) -> Path:
    """Where a deployment file, or a shipped recipe of that name, lies."""
    from toolkit.resources import recipes_dir

    path = Path(file)
    if not path.exists() and path.name == file:
        recipe = recipes_dir() / (file if file.endswith(".yaml") else f"{file}.yaml")
        path = recipe if recipe.is_file() else path
    return path


def _run(plan: Any, run_dir: Path | None) -> None:
    from toolkit.launch.progress import reporter_for
    from toolkit.launch.state import new_run_dir
    from toolkit.launch.supervisor import Supervisor

    if run_dir is None:
        run_dir = new_run_dir(plan.name)
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    supervisor = Supervisor(plan, run_dir, reporter_for())
    _stop_on_signals(supervisor)
    supervisor.run()


def _stop_on_signals(supervisor: Supervisor) -> None:
    import signal

    def stop(signum: int, frame: Any) -> None:
        supervisor.request_stop()

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, stop)


def _detached(
    file: str, device: str | None, host: str | None, run_dir: Path | None, no_check: bool
) -> None:
    """Start the same command in the background and wait until its state says ready."""
    import os
    import subprocess
    import sys
    import time

    from toolkit.launch.command import python_env
    from toolkit.launch.logfile import open_private
    from toolkit.launch.state import STATE, new_run_dir, read_state

    folder = run_dir or new_run_dir(find_deployment(file).name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = [sys.executable, "-m", "toolkit", "launch", file, "--run-dir", str(folder)]
    command += ["--device", device] if device else []
    command += ["--host", host] if host else []
    command += ["--no-check"] if no_check else []
    log = folder / "launcher.log"
    with os.fdopen(open_private(log), "ab") as out:
        launcher = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **python_env()},
            start_new_session=True,
        )
    while launcher.poll() is None:
        if (folder / STATE).is_file() and (state := read_state(folder))["phase"] == "ready":
            print(f"{state['name']} is ready: {state['router_url']}  (toolkit stop ends it)")
            return
        time.sleep(0.2)
    print(log.read_text(errors="replace")[-4000:], file=_stderr())
    raise typer.Exit(launcher.returncode or 1)


def _print_json(data: Any) -> None:
    import json

    print(json.dumps(data, indent=1, default=str))


def wide_console() -> Any:
    from rich.console import Console

    # A pipe has no width: do not fold the table there.
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)


def _stderr() -> Any:
    import sys

    return sys.stderr
