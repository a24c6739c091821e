"""What a workload is made from, as the command line's options say it."""

from dataclasses import dataclass
from pathlib import Path

from toolkit.bench.classes import check_share
from toolkit.bench.conversations import Turns
from toolkit.bench.phases import TrafficPhase

REQUESTS = 64


@dataclass(frozen=True, slots=True)
class Source:
    """What to send: the project's prompts, those of the file `prompts`, or what `trace` recorded.

    `num_requests` None: each prompt of the file once, else REQUESTS. `rate` in requests/s, None:
    trace arrivals (or none at all for prompts). `scale` multiplies lengths, None: as much as it
    takes for the longest request to fit the model's context. `chat`: the endpoint takes messages.
    `phases`, one after the other, take the place of `num_requests`, `domains` and `languages`.
    `turns`: see `toolkit.bench.conversations`; `num_requests` then counts conversations. `think_s`
    lies between an answer and the next turn, on average. `ls_share`: see `toolkit.bench.classes`.
    BenchError: it is no share.
    """

    num_requests: int | None = None
    seed: int = 0
    max_tokens: int | None = None
    domains: str = "all"
    languages: str = "all"
    prompts: Path | None = None
    trace: Path | None = None
    scale: float | None = 1.0
    max_input: int | None = None
    rate: float | None = None
    speedup: float = 1.0
    tokenizer: Path | None = None
    chat: bool = False
    phases: tuple[TrafficPhase, ...] = ()
    turns: Turns = "one"
    think_s: float = 0.0
    ls_share: float | None = None

    def __post_init__(self) -> None:
        check_share(self.ls_share)

    @property
    def requests(self) -> int:
        return REQUESTS if self.num_requests is None else self.num_requests
