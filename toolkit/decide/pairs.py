"""Pairs of a prefill and a decode worker between which KV does not get across, though both are well
with others. Pure: times in.

One path between two machines may be broken, or a worker may hold what it knew of a peer that has
been started again since. No worker is ejected for that: the others of the pair would be lost, too.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from toolkit.decide.ejection import FIRST_S, FORGIVEN_S, LONGEST_S

FAILURES = 2
"""Transfers in a row that fail, and leave the pair out."""
RECENT_S = 60.0
"""So long an outcome says how a worker is with others."""
MOST_KNOWN = 4096
"""Pairs that failed lately; of more the oldest is forgotten."""

Pair = tuple[str, str]
"""Names of a prefill and of a decode worker."""
NONE: frozenset[str] = frozenset()


class TransferOutcome(NamedTuple):
    """Of a transfer; `turn` counts them."""

    turn: int
    at: float
    ok: bool


class PairFailure(NamedTuple):
    """What a transfer that failed says. `blames`: the worker whose fault it is; empty: it is that
    of the pair, or (`unknown`) nothing has been seen of either with others. `left_out_s`: for so
    long the pair is left out from now on; 0: it is not."""

    blames: str
    unknown: bool
    left_out_s: float


@dataclass(slots=True)
class PairRecord:
    """Of a pair that failed lately."""

    failures: int = 0
    """In a row."""
    failed_at: float = 0.0
    out: bool = False
    until: float = 0.0
    """Left out until then; afterwards for all but one request at a time."""
    times: int = 0
    """That it was left out, since it was last forgotten."""
    probe: object | None = None
    """The request that is to show whether the pair is well again."""

    def open_at(self, now: float) -> bool:
        """Whether a request may go that way."""
        return not self.out or (now >= self.until and self.probe is None)


class Pairs:
    """Which pairs are left out. As long as none is `known` to have failed of late, nobody needs to
    say or to ask anything.

    - A pair is left out when FAILURES transfers in a row failed, and at the last one both workers
      were well with others (the last transfer of each with another worker had got across) or had
      not been used with others: they are now. For FIRST_S, twice as long each time (LONGEST_S at
      most). Then one request at a time goes that way again (a probe): when its KV gets across, the
      pair is as any other; else it is out again.
    - A failure while one of the two is not well with others is that worker's fault, and counts for
      its ejection (`toolkit.decide.ejection`) whichever of them said that the transfer had failed.
    - FORGIVEN_S after its last failure a pair is forgotten.

    It is the caller's to pass over this where no other pair is left (`toolkit.decide.choosing`).
    """

    def __init__(self) -> None:
        self.known: OrderedDict[Pair, PairRecord] = OrderedDict()
        """Those that failed lately, the one that failed last as the last."""
        self._out: dict[str, dict[str, PairRecord]] = {}
        """By prefill and decode worker."""
        self._last: dict[str, dict[str, TransferOutcome]] = {}
        """By worker, and by the other one of the pair, since some pair has been known."""
        self._turn = 0
        self.left_out: Counter[Pair] = Counter()
        """How often each was, in all."""

    def closed(self, prefill: str, now: float) -> frozenset[str]:
        """Decode workers to which no KV of this prefill worker should go now."""
        out = self._out.get(prefill)
        if out is None:
            return NONE
        return frozenset(decode for decode, record in out.items() if not record.open_at(now))

    def narrows(self, prefill: str) -> bool:
        """Whether some pair of this prefill worker is left out, or to be probed."""
        return prefill in self._out

    def sent(self, pair: Pair, request: object, now: float) -> None:
        """The request goes that way; `went`, `failed` or `ended` must follow."""
        record = self._out.get(pair[0], {}).get(pair[1])
        if record is not None and record.open_at(now):
            record.probe = request

    def went(self, pair: Pair, now: float) -> None:
        """KV got across."""
        record = self.known.get(pair)
        if record is not None:
            record.failures, record.probe = 0, None
            self._readmit(pair, record)
        self._note(pair, now, ok=True)
        self._forget_old(now)

    def failed(self, pair: Pair, said_by: str, request: object, now: float) -> PairFailure:
        """KV did not get across, as one of the two said."""
        self._forget_old(now)
        well = tuple(self._well_with_others(one, other, now) for one, other in _sides(pair))
        record = self.known.pop(pair, None) or PairRecord()
        self.known[pair] = record
        self._note(pair, now, ok=False)
        record.failed_at = now
        left_out_s = 0.0
        probed = record.probe is request
        if not record.out or probed:  # else it was sent before, or nobody else was there
            record.failures += 1
            if probed or (record.failures >= FAILURES and False not in well):
                left_out_s = self._leave_out(pair, record, now)
        while len(self.known) > MOST_KNOWN:
            self._drop(next(iter(self.known)))
        return PairFailure(_blames(pair, well, said_by), well == (None, None), left_out_s)

    def ended(self, pair: Pair, request: object) -> None:
        """The request is over, and has said neither."""
        record = self.known.get(pair)
        if record is not None and record.probe is request:
            record.probe = None

    def forget(self, worker: str) -> None:
        """Another process answers there now."""
        for pair in [pair for pair in self.known if worker in pair]:
            self._drop(pair)
        self._last.pop(worker, None)
        for outcomes in self._last.values():
            outcomes.pop(worker, None)

    def _leave_out(self, pair: Pair, record: PairRecord, now: float) -> float:
        seconds = min(LONGEST_S, FIRST_S * 2.0 ** min(record.times, 32))
        record.out, record.until, record.probe = True, now + seconds, None
        record.times += 1
        self._out.setdefault(pair[0], {})[pair[1]] = record
        self.left_out[pair] += 1
        return seconds

    def _readmit(self, pair: Pair, record: PairRecord) -> None:
        if record.out:
            record.out = False
            out = self._out[pair[0]]
            del out[pair[1]]
            if not out:
                del self._out[pair[0]]

    def _forget_old(self, now: float) -> None:
        while self.known:
            pair, record = next(iter(self.known.items()))
            if now - record.failed_at < FORGIVEN_S:
                return
            self._drop(pair)

    def _drop(self, pair: Pair) -> None:
        self._readmit(pair, self.known.pop(pair))
        if not self.known:
            self._last.clear()

    def _note(self, pair: Pair, now: float, ok: bool) -> None:
        if not self.known:
            return
        self._turn += 1
        for one, other in _sides(pair):
            self._last.setdefault(one, {})[other] = TransferOutcome(self._turn, now, ok)

    def _well_with_others(self, worker: str, other: str, now: float) -> bool | None:
        """Whether its last transfer with anybody but `other` got across; None: nobody knows."""
        outcomes = self._last.get(worker, {})
        others = [
            each for name, each in outcomes.items()
            if name != other and now - each.at < RECENT_S
        ]  # fmt: skip
        return max(others).ok if others else None


def _sides(pair: Pair) -> tuple[Pair, Pair]:
    """Each worker, with the other one."""
    prefill, decode = pair
    return (prefill, decode), (decode, prefill)


def _blames(pair: Pair, well: tuple[bool | None, ...], said_by: str) -> str:
    """The one that is worse off with others: what is not known is worse than good."""
    if well[0] is well[1]:
        return said_by if well[0] is False else ""
    worse = min(well, key=(False, None, True).index)
    return pair[well.index(worse)]
