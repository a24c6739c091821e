"""When is the decode worker of a long prompt chosen? While its last chunks run, where that pays.

With late dispatch the decode worker is chosen when a prompt is through, by what its prefill has
learned. All of its KV crosses the network then, while the client waits for its second token. A
prompt of many chunks knows nearly as much a few chunks before its end: its decode worker is chosen
then, and only the KV of the last chunk is left when the prompt is through.

To choose earlier than that gains nothing and costs: the decode worker keeps a place for the whole
prompt meanwhile, and its load is that much older. So the choice waits for as long as the KV still
has the time to cross behind the chunks, and where it gains little it stays at the end. Prefill
workers ask this rule (`patches.pd.early_choice`), the simulator too.
"""

from __future__ import annotations

from dataclasses import dataclass

CHUNKS = 3
"""A prompt of fewer is over before anybody could begin to send."""
SLACK = 0.1
"""Of what the earliest choice could save: a later one may do without it."""
KEPT = 0.9
"""Of the weight of what was measured, each time that more is."""


@dataclass(slots=True)
class PrefillPace:
    """What a prefill worker has measured of itself: seconds that chunks took, and transfers of
    whole prompts, both by tokens. What is older weighs less."""

    chunk_tokens: float = 0.0
    chunk_s: float = 0.0
    sent_tokens: float = 0.0
    sent_s: float = 0.0

    def computed(self, tokens: int, seconds: float) -> None:
        """A chunk of `tokens` took so long."""
        self.chunk_tokens = KEPT * self.chunk_tokens + tokens
        self.chunk_s = KEPT * self.chunk_s + seconds

    def sent(self, tokens: int, seconds: float) -> None:
        """The KV of so many tokens was on its way for so long, behind no chunk."""
        self.sent_tokens = KEPT * self.sent_tokens + tokens
        self.sent_s = KEPT * self.sent_s + seconds

    @property
    def known(self) -> bool:
        """Whether both were measured."""
        return self.chunk_tokens > 0 and self.sent_tokens > 0

    @property
    def token_s(self) -> float:
        """Seconds in which one token is computed."""
        return self.chunk_s / self.chunk_tokens

    @property
    def token_kv_s(self) -> float:
        """Seconds in which the KV of one token crosses."""
        return self.sent_s / self.sent_tokens


@dataclass(frozen=True, slots=True)
class EarlyChoice:
    """`least_gain`: of the prompt's own prefill time, what the choice must save; 0: whatever it
    does. `ahead`: chunks that run between the word that a chunk is done and the first KV on its
    way: 1, and one more where the next chunk is launched before that word."""

    least_gain: float
    ahead: int = 1

    def now(self, cached: int, done: int, total: int, chunk: int, pace: PrefillPace) -> bool:
        """Whether to choose when the chunk has run that ends at token `done` of `total`. The first
        `cached` were there before; chunks have `chunk` tokens."""
        if not pace.known or -(-(total - cached) // chunk) < CHUNKS:
            return False
        late = pace.token_kv_s * total
        exposed = self.exposed_s(done, total, chunk, pace)
        if late - exposed <= self.least_gain * pace.token_s * (total - cached) or exposed >= late:
            return False
        earliest = self.exposed_s(min(done, cached + chunk), total, chunk, pace)
        later = self.exposed_s(done + chunk, total, chunk, pace)
        return later > earliest + SLACK * (late - earliest)

    def exposed_s(self, done: int, total: int, chunk: int, pace: PrefillPace) -> float:
        """For how long KV is still on its way when the prompt is through, where the choice is made
        at token `done`."""
        begun = min(done + self.ahead * chunk, total)
        left, rest = pace.token_kv_s * begun, total - begun
        if not rest:
            return pace.token_kv_s * total
        # Each chunk's KV leaves when it has run, behind what is still on its way.
        while rest:
            tokens = min(chunk, rest)
            left = max(0.0, left - pace.token_s * tokens) + pace.token_kv_s * tokens
            rest -= tokens
        return left
