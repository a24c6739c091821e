"""One simulated request, from its arrival to its last token."""

from dataclasses import dataclass
from math import nan

from toolkit.contract.request_class import RequestClass
from toolkit.policies.base import RequestView
from toolkit.policies.preemption.bounds import Paused

UNKNOWN = RequestView()


@dataclass(slots=True, eq=False)
class Request:
    """What was asked for, then what became of it. Times are seconds on the simulated clock, NaN
    until they have come.

    `output` counts all tokens of the answer, the first of which the prefill makes. `blocks` are
    chained hashes of the prompt's leading blocks of `block` tokens. `row`: which row of the
    expert profile it behaves like, -1 without one. `prompt_id`: the same for equal prompts, None
    where nobody knows. `told`: its limit says how long it will be. `conversation`: the same for all
    turns of one, None for a request of its own.
    """

    number: int
    arrived: float
    prompt: int
    output: int
    user: str = ""
    blocks: tuple[int, ...] = ()
    block: int = 0
    row: int = -1
    label: str = ""
    request_class: RequestClass = RequestClass.STANDARD
    prompt_id: int | None = None
    told: bool = False
    conversation: int | None = None

    view: RequestView = UNKNOWN
    cached: int = 0
    computed: int = 0
    """Prompt tokens that its prefill has computed."""
    prefill_began: float = nan
    prefilled: float = nan
    bound: float = nan
    place: tuple[str, int] | None = None
    """The rank where it has its place, once it has one."""
    asked: bool = False
    """Whether its decode rank was asked for while its prompt was computed."""
    sent: int = 0
    """Tokens whose KV left by then."""
    received: float = nan
    """When its decode rank had all KV."""
    first_token: float = nan
    ended: float = nan
    generated: int = 0
    """Tokens of its answer that it had when it joined its batch last."""
    joined: int = 0
    """Steps its group had done when it joined."""
    retracted: int = 0
    paused: Paused | None = None
    """What it went through where it is best-effort and a latency-sensitive request came."""

    @property
    def urgent(self) -> bool:
        """Latency-sensitive."""
        return self.request_class is RequestClass.LATENCY_SENSITIVE

    @property
    def best_effort(self) -> bool:
        return self.request_class is RequestClass.BEST_EFFORT

    @property
    def to_fill(self) -> int:
        """Tokens that its prefill must see: the prompt, and after a retraction what it had said."""
        return self.prompt + self.generated

    @property
    def ttft(self) -> float:
        return self.first_token - self.arrived

    @property
    def tpot(self) -> float:
        """Seconds a token after the first; NaN where there is none."""
        return (self.ended - self.first_token) / (self.output - 1) if self.output > 1 else nan
