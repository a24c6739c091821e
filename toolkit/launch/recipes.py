"""The shipped deployment files, for people who choose one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.resources import recipes_dir
from toolkit.settings.load import load_deployment
from toolkit.settings.systems import System, systems_of

if TYPE_CHECKING:
    from toolkit.settings.deployment import Deployment
    from toolkit.settings.role import Role


@dataclass(frozen=True)
class Recipe:
    """One of them. `starts`: its workers, in words."""

    name: str
    device: str
    starts: str
    systems: tuple[System, ...]


def shipped() -> list[Recipe]:
    """All of them: those for the CPU first, by name."""
    found = []
    for path in recipes_dir().glob("*.yaml"):
        deployment = load_deployment(path)
        found.append(
            Recipe(path.stem, deployment.device, _starts(deployment), systems_of(deployment))
        )
    return sorted(found, key=lambda recipe: (recipe.device, recipe.name))


def _starts(deployment: Deployment) -> str:
    model = deployment.model
    name = model.served_name or model.path.rstrip("/").rpartition("/")[2]
    if deployment.mode == "plain":
        return f"{name}: {_role(deployment.worker, 'worker')}"
    prefill, decode = _role(deployment.prefill, "prefill"), _role(deployment.decode, "decode")
    return f"{name}: {prefill}, {decode}"


def _role(role: Role, name: str) -> str:
    sizes = [
        f"{what} {size}"
        for what, size in (("TP", role.tp), ("EP", role.ep), ("DP", role.dp))
        if size > 1
    ]
    if role.dp > 1:
        sizes[-1] += " attention" if role.dp_attention else ""
    return f"{role.replicas} {name}" + (f" ({', '.join(sizes)})" if sizes else "")
