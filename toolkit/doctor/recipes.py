"""Which of the shipped deployment files could be launched here, and why not the others."""

from dataclasses import dataclass
from pathlib import Path

from toolkit.launch import hardware
from toolkit.launch.checks import possible
from toolkit.launch.errors import LaunchError
from toolkit.launch.plan import Plan
from toolkit.launch.resolve import resolve
from toolkit.resources import recipes_dir
from toolkit.settings.load import load_deployment


@dataclass(frozen=True)
class RecipeCheck:
    """`why` holds the reasons against; it runs here when there is none."""

    recipe: str
    why: tuple[str, ...]
    device: str = "?"


def examine(folder: Path | None = None, full: bool = False) -> list[RecipeCheck]:
    """A check of each recipe. `full` asks SGLang itself about every flag (about 20 s each)."""
    files = sorted((folder or recipes_dir()).glob("*.yaml"))
    return [recipe_check(file, full) for file in files]


def recipe_check(file: Path, full: bool = False) -> RecipeCheck:
    """Whether one deployment file could be launched here."""
    try:
        plan = resolve(load_deployment(file))
    except LaunchError as error:
        return RecipeCheck(file.name, tuple(str(problem) for problem in error.problems))
    problems = possible.check(plan) if full else possible.quick(plan)
    lacking = gpus_lacking(plan, len(hardware.visible_gpus()))
    reasons = [f"{p.where}: {p.what}" if p.where else p.what for p in problems if p.fatal]
    return RecipeCheck(file.name, (*lacking, *dict.fromkeys(reasons)), plan.device)


def gpus_lacking(plan: Plan, seen: int) -> tuple[str, ...]:
    """`seen`: GPUs usable on this machine. The plan's other hosts are not looked at."""
    if plan.device != "cuda":
        return ()
    hosts = {worker.host for worker in plan.workers}
    reasons = []
    wanted = {gpu for worker in plan.workers if worker.local for gpu in worker.gpus}
    if len(wanted) > seen:
        reasons.append(f"needs {len(wanted)} GPUs a host, {seen or 'none'} here")
    if len(hosts) > 1:
        reasons.append(f"needs {len(hosts)} hosts")
    return tuple(reasons)
