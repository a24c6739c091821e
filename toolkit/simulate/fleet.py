"""What is simulated: workers, their sizes and the router's settings."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from toolkit.contract.preempting import Preempting
from toolkit.policies import check_policy
from toolkit.policies.base import group_count
from toolkit.policies.rounds.pooling import bare, is_pooled, no_pool
from toolkit.policies.stages.layout import Layout
from toolkit.settings.router.rebalance import Rebalance
from toolkit.simulate.drafting import Drafting


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


UNBOUNDED = 1 << 36
"""KV tokens of a pool whose size nobody said. No policy takes it for a reading that cannot be true
(`toolkit.policies.support.readings.HUGE`)."""
Speed = Annotated[float, Field(gt=0, le=1)]


class Stopping(_Strict):
    """How best-effort prompts give way, by `rules`, in a model of so many `layers`; 1 where they
    are stopped between chunks only. `ahead`: a look finds that the next slice is under way already,
    as on a GPU, so that who is let in waits for that one, too."""

    rules: Preempting = Preempting()
    layers: Annotated[int, Field(ge=1)]
    ahead: bool = False


class PrefillFleet(_Strict):
    """`chunk`: prompt tokens of one pass at most. `waiting_age_s`: None is first come first
    served, else shortest first, and first who has waited so long (`toolkit.policies.sjf`). `loop`:
    as `DecodeFleet` has it. `preempt`: None where prompts of all classes are alike. `early_choice`:
    of a long prompt's prefill time, what must be saved for its decode rank to be chosen while it
    runs (`toolkit.policies.early_choice`); None: never. `early_send`: a finished prompt's KV leaves
    when its decode rank asks for it (`patches.pd.early_send`), else between two passes."""

    replicas: Annotated[int, Field(ge=1)] = 1
    chunk: Annotated[int, Field(ge=1)] = 8192
    kv_tokens: Annotated[int, Field(ge=1)] = UNBOUNDED
    waiting_age_s: Annotated[float | None, Field(ge=0)] = None
    loop: Literal["overlap", "cpu", "plain"] = "overlap"
    preempt: Stopping | None = None
    early_choice: Annotated[float | None, Field(ge=0)] = None
    early_send: bool = True


class StageFleet(_Strict):
    """`replicas` servers for requests of `upto` KV tokens at most, None: of any length
    (`toolkit.policies.stages.layout.LengthStage`)."""

    upto: int | None = None
    replicas: int = 1


class _Stages(_Strict):
    """Decode workers, in `stages` or, without any, alike. Where there are stages, `replicas` is the
    sum of theirs, and may be left out."""

    replicas: Annotated[int, Field(ge=1)] = 1
    dp: Annotated[int, Field(ge=1)] = 1
    stages: tuple[StageFleet, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _counted(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not given.get("stages") or "replicas" in given:
            return given
        stages = [StageFleet.model_validate(stage) for stage in given["stages"]]
        return given | {"replicas": sum(stage.replicas for stage in stages)}

    @model_validator(mode="after")
    def _laid_out(self) -> Self:
        layout = self.layout
        if layout is not None and layout.ranks != self.replicas * self.dp:
            raise ValueError(
                f"the stages have {layout.ranks // self.dp} replicas and there are "
                f"{self.replicas}: leave replicas out"
            )
        return self

    @property
    def layout(self) -> Layout | None:
        """Of the DP ranks; None without stages."""
        stages = [(stage.upto, stage.replicas * self.dp) for stage in self.stages]
        return Layout.of(stages) if stages else None


class DecodeFleet(_Stages):
    """`slots`, `kv_tokens`, `reserve` (KV tokens kept free for each request) are of one rank.
    `dp_attention`: the `dp` ranks of a server take every step together. `loop`: SGLang's overlap
    scheduler on a GPU, on a CPU, or none (`toolkit.simulate.scheduling.Scheduling`).
    `early_place`: a rank looks at new requests while a step runs, too
    (`patches.pd.early_place`)."""

    dp_attention: bool = False
    slots: Annotated[int, Field(ge=1)] = 64
    kv_tokens: Annotated[int, Field(ge=1)] = UNBOUNDED
    reserve: Annotated[int, Field(ge=0)] = 512
    loop: Literal["overlap", "cpu", "plain"] = "overlap"
    early_place: bool = False


class WorkerFleet(_Stages):
    """Workers that prefill and decode both (`toolkit.simulate.plain`). `slots`, `kv_tokens` are of
    one rank; `mixed`: decode steps go on within prefill passes; `limit`: tokens that clients allow
    an answer, None where they know how long it gets; `conservativeness`: SGLang's
    `--schedule-conservativeness`; `static`: a batch runs to its end before the next one is let in;
    `priorities`: who waits is let in by class, and nobody is stopped. The others: see
    `PrefillFleet`, `DecodeFleet`."""

    dp_attention: bool = False
    slots: Annotated[int, Field(ge=1)] = 64
    kv_tokens: Annotated[int, Field(ge=1)] = UNBOUNDED
    chunk: Annotated[int, Field(ge=1)] = 8192
    mixed: bool = False
    waiting_age_s: Annotated[float | None, Field(ge=0)] = None
    loop: Literal["overlap", "cpu", "plain"] = "overlap"
    limit: Annotated[int | None, Field(ge=1)] = None
    conservativeness: Annotated[float, Field(ge=0)] = 1.0
    static: bool = False
    priorities: bool = False
    preempt: Stopping | None = None


def _rebalanced(value: object) -> object:
    """`True`: with its defaults; `False`: not at all."""
    return ({} if value else None) if isinstance(value, bool) else value


class RouterFleet(_Strict):
    """As in a deployment file; `park_timeout_s`: None is for ever. `hop_s`: a message between
    router and worker; `report_s`: how often loads are read, 0 after every step. `classes`: best-
    effort requests wait behind all others. `first_token`: whose token a stream begins with, where
    `dispatch` is late. `rebalance`: requests move between decode ranks; None: only where there are
    stages. `moves`: how (`toolkit.simulate.moves.SimulatedMoves`). `routers`: so many decide, each
    for the requests that came to it (one after the other in turn), by readings that count all, and
    with its share of `parked_per_prefill`."""

    dispatch: Literal["late", "concurrent"] = "late"
    prefill_policy: str = "round_robin"
    decode_policy: str = "level"
    tau: float | None = None
    parked_per_prefill: Annotated[int, Field(ge=1)] = 8
    park_timeout_s: Annotated[float | None, Field(gt=0)] = None
    hop_s: Annotated[float, Field(ge=0)] = 0.001
    report_s: Annotated[float, Field(ge=0)] = 0.0
    classes: bool = False
    first_token: Literal["prefill", "decode"] = "decode"
    rebalance: Annotated[Rebalance | None, BeforeValidator(_rebalanced)] = None
    moves: Literal["direct", "replay"] = "direct"
    routers: Annotated[int, Field(ge=1)] = 1

    @field_validator("prefill_policy", "decode_policy")
    @classmethod
    def _known(cls, name: str, info: object) -> str:
        side = getattr(info, "field_name", "decode_policy").partition("_")[0]
        check_policy(name, side)
        return name

    @model_validator(mode="after")
    def _several_read_with_delay(self) -> RouterFleet:
        if self.routers > 1 and not self.report_s:
            raise ValueError(
                "routers: several do not know at once what each of them sends: give report_s, the "
                "age of what workers say of their load (a decode step, 0.02 or so)"
            )
        if self.routers > self.parked_per_prefill:
            raise ValueError(
                f"routers: {self.routers} cannot share {self.parked_per_prefill} parked prefills: "
                "give a larger parked_per_prefill"
            )
        return self

    @model_validator(mode="after")
    def _pooled_where_there_is_a_pool(self) -> RouterFleet:
        if is_pooled(self.decode_policy) and (why := no_pool(True, self.dispatch)):
            raise ValueError(f"{self.decode_policy}: {why}, or write {bare(self.decode_policy)}")
        return self


class Machine(_Strict):
    """Where workers share one: how fast each is (1: as alone) while another computes. `decode`: a
    group of ranks that take their steps together; `prefill`: a worker in a pass over prompts."""

    decode_beside_prefill: Speed = 1.0
    prefill_beside_decode: Speed = 1.0
    decode_beside_decode: Speed = 1.0
    prefill_beside_prefill: Speed = 1.0


class Fleet(_Strict):
    """A whole simulated deployment: prefill and decode workers, or, if there is a `worker`,
    replicas of that alone. `drafting`: all of them with a draft; None: none."""

    prefill: PrefillFleet = PrefillFleet()
    decode: DecodeFleet = DecodeFleet()
    worker: WorkerFleet | None = None
    router: RouterFleet = RouterFleet()
    machine: Machine = Machine()
    drafting: Drafting | None = None

    @property
    def rebalance(self) -> Rebalance | None:
        """Whose requests move, and when; None: nobody's do."""
        found = self.router.rebalance
        if found is None and (self.worker or self.decode).stages:
            found = Rebalance()
        return found if found is not None and found.on else None

    @property
    def decode_ranks(self) -> int:
        decoding = self.worker or self.decode
        return decoding.replicas * decoding.dp

    @property
    def centroids(self) -> int:
        """How many ELDR has for those ranks."""
        decoding = self.worker or self.decode
        return decoding.replicas * group_count(decoding.dp, decoding.dp_attention)
