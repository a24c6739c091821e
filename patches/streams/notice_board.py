"""Takes routers' notices for a worker, in bounds, and tells them to the routers that listen."""

from collections import Counter
from typing import Protocol

import msgspec

from toolkit.contract.notices import NOTICE_MAX, Notice, Posted
from toolkit.decide.notices import NoticeAllowance


class TellsRouters(Protocol):
    """Whom routers listen to."""

    @property
    def routers(self) -> frozenset[str]:
        """Names of those that listen."""
        ...

    def tell(self, notice: Notice) -> Posted:
        """Put it on the streams of those that it is for."""
        ...


class NoticeBoard:
    """See the module. `counts`: what became of notices, by a word."""

    def __init__(self, hub: TellsRouters) -> None:
        self._hub = hub
        self._allowance = NoticeAllowance()
        self.counts: Counter[str] = Counter()

    def take(self, raw: bytes, now: float) -> tuple[int, bytes, float]:
        """The answer to a router that posts this at time `now`: its status, its body, and in how
        many seconds it may try again (0.0: it need not).

        - 200: `Posted`
        - 400, 413: it is no notice, or too long
        - 409: its sender does not listen here, so that nothing is kept of strangers
        - 429: its sender has said too much of late
        """
        status, answer, wait_s = self._judge(raw, now)
        self.counts[str(status)] += 1
        return status, msgspec.json.encode(answer), wait_s

    def _judge(self, raw: bytes, now: float) -> tuple[int, Posted | str, float]:
        if len(raw) > NOTICE_MAX:
            return 413, f"A notice has at most {NOTICE_MAX} bytes.", 0.0
        try:
            notice = msgspec.json.decode(raw, type=Notice)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return 400, "This is no notice.", 0.0
        if notice.sender not in self._hub.routers:
            return 409, "The sender does not listen to this worker.", 0.0
        wait_s = self._allowance.take(notice.sender, len(raw), now)
        if wait_s:
            return 429, "This router has said too much of late.", wait_s
        posted = self._hub.tell(notice)
        self.counts["told"] += len(posted.told)
        self.counts["left_out"] += posted.left_out
        return 200, posted, 0.0
