"""From an architecture to the row of its table: what works, and why the rest is refused."""

import inspect
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.architectures import checkpoints, deployment, hicache
from tests.architectures.configs import Architecture
from tests.architectures.reference import Reference
from tests.architectures.trial import Refused, Trial, plain_answers
from tests.e2e import calls
from toolkit.launch.errors import Problem

YES = "yes"
FAILED = "FAILED: "
REFUSED = "refused: "


def failed(cells: dict[str, str]) -> bool:
    """Whether something neither works nor is refused."""
    return any(said.startswith(FAILED) for said in cells.values())


def tried(architecture: Architecture, folder: Path, only_dry: bool = False) -> dict[str, str]:
    """Each column and what came of it."""
    bare = checkpoints.write_config(architecture, folder / "config")
    cells = {
        f"dry run, {device}": dry(architecture, bare, folder, device) for device in ("cuda", "cpu")
    }
    if only_dry or cells["dry run, cpu"].startswith(REFUSED):
        return cells
    model = checkpoints.write(architecture, folder / "model")
    cells["plain"], plain = attempt(partial(plain_answers, architecture, model, folder))
    if plain is None:
        return cells
    reference = Reference(architecture, model)
    contents = deployment.described(architecture, model)
    try:
        with deployment.up(contents, folder / "pd") as up:
            trial = Trial(up, architecture, plain, reference)
            parts: dict[str, Callable[[], Any]] = {
                "PD": trial.equal,
                "signature": trial.signatures,
                "prefix cache": trial.prefix_cache,
                "late binding": trial.late_binding,
                "moved live": trial.moved,
            }
            for name, part in parts.items():
                cells[name], told = attempt(part)
                if isinstance(told, dict):
                    cells[name] = ", ".join(f"{kind}: {n}" for kind, n in told.items())
    except Exception as error:
        traceback.print_exc()
        cells["PD"] = f"{FAILED}{type(error).__name__}: {error}"
    return cells


def cached(architecture: Architecture, folder: Path) -> dict[str, str]:
    """What becomes of KV that hierarchical cache brings back, by where it comes from."""
    model = checkpoints.write(architecture, folder / "model")
    reference = Reference(architecture, model)
    cells = {}
    for kind, args in hicache.KINDS.items():
        place = folder / kind.replace(" ", "-")
        contents = hicache.contents(architecture, model, args, place / "store")
        try:
            with deployment.up(contents, place) as up:
                given = (up, architecture, reference)
                said, told = attempt(partial(hicache.returning, *given))
                cells[kind] = told or said
                cells[f"{kind}, parked"], _ = attempt(partial(hicache.parked, *given))
        except Exception as error:
            traceback.print_exc()
            cells[kind] = f"{FAILED}{type(error).__name__}: {error}"[:300]
    return cells


def attempt(part: Callable[[], Any]) -> tuple[str, Any]:
    """Run a function, or a coroutine function: `yes` and what it gave, or what went wrong and
    None."""
    try:
        gave = part()
        return YES, calls.run(gave) if inspect.iscoroutine(gave) else gave
    except Refused as error:
        return f"{REFUSED}{error}", None
    except Exception as error:
        traceback.print_exc()
        return f"{FAILED}{type(error).__name__}: {error}"[:300], None


def dry(architecture: Architecture, model: Path, folder: Path, device: str) -> str:
    """`yes`, with its notes, or the refusal."""
    contents = deployment.described(architecture, model, device=device)
    found = deployment.problems(contents, folder)
    wrong = [problem for problem in found if problem.fatal]
    if wrong:
        return REFUSED + "; ".join(map(_told, wrong))
    notes = [problem for problem in found if problem.where not in ("model", "GPUs")]
    return YES + "".join(f"; note: {_told(note)}" for note in notes)


def _told(problem: Problem) -> str:
    return " ".join(str(problem).split())
