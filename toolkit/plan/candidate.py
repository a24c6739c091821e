"""A deployment that could be launched, as the simulator sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from toolkit.plan.errors import PlanError
from toolkit.plan.expert_layout import Lay, bare, lay_of
from toolkit.settings.deployment import Deployment
from toolkit.settings.document import Document
from toolkit.simulate.fleet import Fleet, Machine
from toolkit.simulate.of_deployment import fleet_of
from toolkit.simulate.of_draft import UNKNOWN, DraftCosts


@dataclass(frozen=True)
class Given:
    """What is the same for every candidate. `folder`: where relative paths start; `kv_tokens`,
    `slots`: of a decode rank, where the file leaves them to SGLang; `machine`, `draft`: as of
    `fleet_of`."""

    folder: Path = Path()
    kv_tokens: int | None = None
    slots: int | None = None
    machine: Machine | None = None
    draft: DraftCosts = UNKNOWN


@dataclass(frozen=True, eq=False)
class Candidate:
    """`document` is the file that would be written; what is simulated is what it says, no more."""

    document: Document = field(repr=False)
    deployment: Deployment = field(repr=False)
    fleet: Fleet
    lay: Lay
    """Of its experts, where that is searched."""

    @classmethod
    def of(cls, document: Document, given: Given) -> Candidate:
        """PlanError: no valid deployment. SimulateError: one that is not simulated."""
        try:
            deployment = Deployment.model_validate({**bare(document), "folder": given.folder})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            said = first["msg"].removeprefix("Value error, ")
            raise PlanError(f"{where}: {said}" if where else said) from error
        if deployment.mode != "pd":
            raise PlanError(f"mode: {deployment.mode} is not planned: prefill and decode roles are")
        fleet = fleet_of(deployment, given.kv_tokens, given.slots, given.machine, draft=given.draft)
        return cls(document, deployment, fleet, lay_of(document))

    @property
    def workers(self) -> int:
        """Replicas of both roles."""
        return self.deployment.prefill.replicas + self.deployment.decode.replicas

    @property
    def gpus(self) -> int:
        """GPUs, on a CPU scheduler processes, of all replicas."""
        return sum(role.replicas * role.ranks for role in self.deployment.roles.values())

    def __str__(self) -> str:
        router = self.fleet.router
        split = f"{self.deployment.prefill.replicas} prefill + {self.deployment.decode.replicas}"
        return f"{split} decode, {router.prefill_policy} and {router.decode_policy}"
