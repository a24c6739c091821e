"""Where the experts of a decode server lie: what is searched, and what each choice does.

Placements are fitted to the requests that the profile fits; simulated traffic follows those that it
held out. Which replica is picked is the cost file's to say (`links: {replicas: ..}`).

Traffic that changes (`drift` decode steps; none: it stays): a share e^(-age / drift) of it is still
as it was `age` steps ago, and for the rest a placement is as good as `linear`. Experts that are
moved every n steps lie as the traffic of the n steps before the last decision had it, so on average

    fresh = drift / n * (1 - e^(-n / drift)) * e^(-n / (2 drift)),

and as nobody knows anything of the rest, 1 - e^(-n / drift) of what differs from `linear` is moved
each time, at `Cost.seconds`. Experts that are never moved lie like `linear` in the end. The form is
ours, an assumption: a profile does not say how traffic changes.

SGLang's EPLB (`Lay.engine`) lies as well at the same interval, but it does not ask whether a move
pays, and does not name its GPUs so that most stays: each time it writes what differs between the
maps of two samples of the same traffic, and sends it at the same rate. What it computes and what
its orders take besides is not known, and taken as nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from toolkit.placement.online import Cost
from toolkit.plan.errors import PlanError
from toolkit.plan.fitted_requests import FittedRequests
from toolkit.plan.plain_data import arg_key
from toolkit.relocate.pace import MOST, ORDER_S
from toolkit.settings.document import Document, get, put
from toolkit.simulate.experts import SimulatedExperts

if TYPE_CHECKING:
    from toolkit.placement import Placement, Topology
    from toolkit.profile.placing import Arrays
    from toolkit.profile_folder.schema import Profile

LINEAR, NODES = "linear", "nodes"
KINDS = (LINEAR, "eplb", "joint")
PLANNED = "planned"
"""Key of a planned document for what no deployment file says; `bare` takes it away."""


class Lay(NamedTuple):
    """`kind` of placement, `redundant` experts, decode steps between two decisions to move them
    (`every`, None: never), requests that a placement is fitted to (`seen`, None: all that the
    profile fits), whether SGLang's own EPLB moves them (`engine`)."""

    kind: str = LINEAR
    redundant: int = 0
    every: int | None = None
    seen: int | None = None
    engine: bool = False


def lay_of(document: Document) -> Lay:
    """That of a planned document."""
    return Lay(
        get(document, PLANNED, "placement") or LINEAR,
        int(get(document, *arg_key(document, "decode", REDUNDANT)) or 0),
        get(document, PLANNED, "every"),
    )


REDUNDANT, LOCATION = "ep-num-redundant-experts", "init-expert-location"


def bare(document: Document) -> Document:
    """Without what no deployment file says."""
    return {key: value for key, value in document.items() if key != PLANNED}


@dataclass(frozen=True)
class RelocationCost:
    """`drift`: decode steps in which traffic becomes another's, None: it stays; `bytes_per_s`
    between the GPUs of a server, all together."""

    drift: int | None
    bytes_per_s: float = 1e9

    def __post_init__(self) -> None:
        if (self.drift is not None and self.drift < 1) or not self.bytes_per_s > 0:
            raise PlanError("--expert-drift is 1 step or more, --move-gb-s above 0")

    def fresh(self, every: int | None) -> float:
        """Share of the time in which experts lie as they were placed."""
        if self.drift is None:
            return 1.0
        if every is None:
            return 0.0
        age = every / self.drift
        return (1 - math.exp(-age)) / age * math.exp(-age / 2)

    def moved(self, every: int) -> float:
        """Share of what differs that each decision moves."""
        return 0.0 if self.drift is None else 1 - math.exp(-every / self.drift)


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU: of an expert over all layers, of a KV token."""

    expert: float
    kv_token: float

    def kv_tokens(self, pool: int, more: int) -> int:
        """KV tokens of a rank that are left with so many more expert slots a GPU."""
        return math.floor(pool - more * self.expert / self.kv_token)


@dataclass(frozen=True, eq=False)
class Layouts:
    """A profile's requests on `topology`. `near`: the nearest replica is picked, and an all-to-all
    joins the ranks; `expert_bytes`: of one expert of one layer, None where nobody knows. `fitted`:
    requests that placements are fitted to, None for the profile's own."""

    experts: SimulatedExperts
    profile: Profile
    arrays: Arrays
    topology: Topology
    near: bool = False
    moving: RelocationCost | None = None
    memory: Memory | None = None
    expert_bytes: float | None = None
    fitted: FittedRequests | None = None
    _placements: dict[tuple[str, int, int | None, int], Placement] = field(default_factory=dict)
    _laid: dict[Lay, SimulatedExperts] = field(default_factory=dict)

    def of(self, lay: Lay) -> SimulatedExperts:
        """The profile's requests with experts that lie so. ValueError: sizes that do not divide,
        requests that are too few."""
        if lay not in self._laid:
            found = self._placed(lay)
            if self.moving is not None and lay.kind != LINEAR:
                old = self._placed(Lay(LINEAR, lay.redundant))
                fresh = self.moving.fresh(lay.every)
                found = found.aged(old, fresh, self.moving_s(lay) / (lay.every or 1))
            self._laid[lay] = found
        return self._laid[lay]

    def placement(self, lay: Lay, sample: int = 0) -> Placement:
        """As it is at the start; of what a server `seen` so many requests of, in another `sample`
        of them another one. ValueError: as `of`."""
        from toolkit import placement

        key = lay.kind, lay.redundant, lay.seen, sample
        if key not in self._placements:
            fitted = self._fitted
            if lay.kind == NODES:
                if fitted.by_gpu is None:
                    raise ValueError("fewer requests than GPUs cannot be laid with their experts")
                found = placement.lay(fitted.by_gpu, self.topology, lay.redundant).placement
            else:
                known = fitted.traffic if lay.seen is None else fitted.seen(lay.seen, sample)
                found = placement.place(lay.kind, known, self.topology, lay.redundant)
            self._placements[key] = found
        return self._placements[key]

    @cached_property
    def _fitted(self) -> FittedRequests:
        gpus = self.topology.gpus
        return self.fitted or FittedRequests.of_profile(self.profile, self.arrays, gpus)

    def write(self, document: Document, path: Path) -> Document:
        """A file that can be launched: what the plan says of experts in SGLang's flags, and the
        placement at `path`. PlanError: it cannot be written."""
        lay, made = lay_of(document), bare(document)
        if lay.kind == LINEAR:
            return made
        model = self.profile.model
        try:
            self.placement(lay).save(path, model.layers, model.hidden_layers)
        except OSError as error:
            raise PlanError(f"{path} cannot be written: {error.strerror}") from error
        made = put(made, arg_key(made, "decode", LOCATION), str(path.resolve()))
        if self.near:
            made = put(made, arg_key(made, "decode", "ep-dispatch-algorithm"), "static")
        return made

    def _placed(self, lay: Lay) -> SimulatedExperts:
        return self.experts.placed(self.placement(lay))

    def copied(self, lay: Lay) -> tuple[int, int]:
        """What each decision to move them does, on average: experts that leave their GPU, and slots
        that are written."""
        from toolkit.placement.relocation import aligned, arranged, copies

        if lay.every is None or self.moving is None:
            return 0, 0
        if lay.engine:
            before, after, part = self.placement(lay), self.placement(lay, sample=1), 1.0
        else:
            before, part = self.placement(Lay(LINEAR, lay.redundant)), self.moving.moved(lay.every)
            after = arranged(before, aligned(before, self.placement(lay), self.topology))
        rows = zip(
            before.physical_to_logical.tolist(), after.physical_to_logical.tolist(), strict=True
        )
        changed = [copies(one, two, self.topology) for one, two in rows]
        sent, written = sum(each.sent for each in changed), sum(each.written for each in changed)
        return round(part * sent), round(part * written)

    def moving_s(self, lay: Lay) -> float:
        """What each decision takes; 0 where nothing says so."""
        if self.moving is None or self.expert_bytes is None:
            return 0.0
        (sent, written), rate = self.copied(lay), self.moving.bytes_per_s
        if lay.engine:
            return sent * self.expert_bytes / rate
        return Cost(self.expert_bytes, rate, ORDER_S, MOST).seconds(sent, written)
