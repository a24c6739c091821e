"""What a decode rank carries: every request counts once, whatever its readings contain by now."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.contract.events import LoadReading
from toolkit.decide.ledger import WINDOW_S, Ledger
from toolkit.decide.waiting_work import STALE_S
from toolkit.policies.base import Load
from toolkit.router.events import Watcher
from toolkit.router.known_workers import KnownWorkers
from toolkit.router.worker import Rank
from toolkit.settings.router.config import RouterConfig


def reading(requests: int, tokens: int, waiting: int = 0, coming: int = 0) -> dict[str, int]:
    """Of a rank with `requests` that run and hold `tokens`, and `waiting` ones besides."""
    return {
        "running": requests,
        "waiting": waiting,
        "used_tokens": tokens,
        "total_tokens": 10_000,
        "waiting_tokens": coming,
    }


def held(ledger: Ledger, now: float) -> tuple[int, int]:
    """Requests and KV tokens, as a policy sees them."""
    load = ledger.load(now, heard_at=now)
    assert load is not None
    return load.requests, load.used_tokens + load.waiting_tokens + load.sent_tokens


def started(*sizes: int) -> tuple[Ledger, list[int]]:
    """A ledger with these requests, all in its reading at second 2."""
    ledger = Ledger(complete=True)
    leases = [ledger.begin(size, 0.0) for size in sizes]
    ledger.read(reading(len(sizes), sum(sizes)), 2.0)
    assert held(ledger, 2.0) == (len(sizes), sum(sizes))
    return ledger, leases


def test_a_request_counts_once_before_and_after_its_reading() -> None:
    ledger, _ = started(100)
    ledger.begin(50, 2.1)
    assert held(ledger, 2.1) == (2, 150)
    ledger.read(reading(1, 101), 2.11)  # taken before it arrived
    assert held(ledger, 2.11) == (2, 151)
    ledger.read(reading(1, 102, waiting=1, coming=50), 2.12)  # it has arrived, 20 ms after
    assert held(ledger, 2.12) == (2, 152)
    ledger.read(reading(2, 153), 2.2)
    assert held(ledger, 2.2) == (2, 153)


def test_what_ends_of_a_former_process_takes_nothing_off_what_the_next_one_says() -> None:
    ledger, leases = started(100, 300)
    ledger.replaced()
    assert ledger.load(2.0, heard_at=2.0) is None
    ledger.read(reading(1, 50), 2.1)  # another router's
    ledger.begin(70, 2.2)
    for lease, tokens in zip(leases, (100, 300), strict=True):
        ledger.end(lease, tokens, 2.3)
    assert held(ledger, 2.3) == (2, 120)
    assert (ledger.inflight, ledger.inflight_tokens) == (1, 70)


def test_what_has_ended_since_the_reading_is_taken_off() -> None:
    ledger, leases = started(100, 300)
    ledger.read(reading(2, 410), 2.1)
    ledger.end(leases[0], 100, 2.15, generated=5)
    assert held(ledger, 2.15) == (1, 305)
    ledger.read(reading(2, 412), 2.16)  # still with the one that has ended
    assert held(ledger, 2.16) == (1, 307)
    ledger.read(reading(1, 308), 2.2)
    assert held(ledger, 2.2) == (1, 308)


def test_of_one_that_went_and_one_that_came_the_tokens_tell_which_is_in_the_reading() -> None:
    for contains_new, tokens in ((False, 406), (True, 701)):
        ledger, leases = started(100, 300)
        ledger.end(leases[0], 100, 2.10, generated=4)
        ledger.begin(400, 2.11)
        ledger.read(reading(2, tokens), 2.12)
        expected = tokens if contains_new else tokens - 104 + 400
        assert held(ledger, 2.12) == (2, expected)


def test_what_other_routers_sent_stays() -> None:
    ledger = Ledger(complete=True)
    lease = ledger.begin(100, 0.0)
    ledger.read(reading(6, 1100), 0.2)
    assert held(ledger, 0.2) == (6, 1100)
    ledger.begin(50, 0.3)
    assert held(ledger, 0.3) == (7, 1150)
    ledger.read(reading(7, 1150), 0.4)
    ledger.end(lease, 100, 0.5)
    assert held(ledger, 0.5) == (6, 1050)


def test_it_is_never_less_than_our_own() -> None:
    ledger, _ = started(100)
    for _ in range(3):
        ledger.begin(10, 2.1)
    ledger.read(reading(0, 0), 2.1 + 2 * WINDOW_S)  # a restart that nobody noticed
    assert held(ledger, 2.1 + 2 * WINDOW_S)[0] == 4


def test_what_was_never_sent_leaves_nothing() -> None:
    ledger, _ = started(100)
    ledger.cancel(ledger.begin(50, 2.1), 50)
    assert (held(ledger, 2.1), ledger.inflight, ledger.inflight_tokens) == ((1, 100), 1, 100)
    ledger.read(reading(1, 100), 2.2)
    assert held(ledger, 2.2) == (1, 100)


def test_a_rank_that_stops_publishing_while_something_runs_there_has_no_reading() -> None:
    ledger, leases = started(100)
    later = 2.0 + STALE_S + 0.1
    assert ledger.load(later, heard_at=later) is None
    ledger.end(leases[0], 100, later)
    assert ledger.load(later, heard_at=later) is not None  # idle: nothing to say
    ledger.begin(100, later)
    assert ledger.load(later + 1, heard_at=later + 1) is not None
    assert ledger.load(later + STALE_S + 1, heard_at=later + STALE_S + 1) is None


def test_a_prefill_rank_may_be_quiet_while_requests_are_parked_there() -> None:
    ledger = Ledger(complete=False)
    ledger.begin(100, 0.0)
    ledger.read(reading(0, 100), 0.1)
    assert ledger.load(100.0, heard_at=100.0) is not None
    assert ledger.load(100.0, heard_at=0.1) is None


def test_a_worker_that_is_back_with_the_same_process_says_nothing_until_something_changes() -> None:
    ledger = Ledger(complete=True)
    ledger.read(reading(0, 0), 0.0)
    for _ in range(2):
        ledger.forget()
        ledger.forget()
        assert ledger.load(1.0, heard_at=1.0) is None
        ledger.recall()
        assert held(ledger, 1.0) == (0, 0)
    ledger.forget()
    ledger.renew()
    ledger.recall()
    assert ledger.load(1.0, heard_at=1.0) is None, "another process computes there"
    ledger.read(reading(2, 50), 1.0)
    ledger.forget()
    ledger.read(reading(1, 20), 2.0)
    ledger.recall()
    assert held(ledger, 2.0) == (1, 20), "it has said something since"


def test_an_impossible_reading_reaches_the_policy_as_it_is() -> None:
    ledger, _ = started(100)
    ledger.read(reading(1, -7), 2.5)
    load = ledger.load(2.5, heard_at=2.5)
    assert isinstance(load, Load)
    assert load.used_tokens == -7


WORKERS = [
    {"name": "p", "role": "prefill", "url": "http://127.0.0.1:1", "bootstrap_port": 1},
    {"name": "d", "role": "decode", "url": "http://127.0.0.1:2"},
]
CONFIG = RouterConfig.model_validate({"workers": WORKERS})


def decode_rank() -> Rank:
    return KnownWorkers(CONFIG).side("decode")[0]


def test_what_waits_for_its_kv_on_a_decode_rank_is_load() -> None:
    rank = decode_rank()
    event = {"running": 1, "waiting": 2, "used_tokens": 500, "total_tokens": 800}
    rank.read(LoadReading(**event, capacity_tokens=4000), 1.0)
    load = rank.load(1.0)
    assert load is not None
    assert (load.used_tokens, load.waiting_tokens, load.total_tokens) == (500, 300, 4000)


@pytest.mark.parametrize("wrong", [b'"many"', b"[1]", b'{"a":1}', b"1e999", b"null"])
def test_a_reading_that_is_none_is_refused_and_the_old_one_forgotten(wrong: bytes) -> None:
    rank = decode_rank()
    rank.read(LoadReading(running=1, used_tokens=5), 1.0)
    Watcher(rank.worker, KnownWorkers(CONFIG), CONFIG)._feed(
        b'{"type":"load","running":' + wrong + b"}\n"
    )
    assert rank.load(2.0) is None


def test_whatever_a_worker_says_its_stream_goes_on() -> None:
    rank = decode_rank()
    watcher = Watcher(rank.worker, KnownWorkers(CONFIG), CONFIG)
    for line in (
        b'{"type":"load","running":1,"used_tokens":5}',
        b'{"type":"load","dp_rank":7,"running":1}',
        b'{"type":"load","dp_rank":"x","running":1}',
        b'{"type":"load","dp_rank":-1,"running":1}',
    ):
        watcher._feed(line + b"\n")
        assert rank.used_tokens == 5
    for wrong in (b'"many"', b"[1]", b"{}1", b'{"a":1}'):
        watcher._feed(b'{"type":"load","running":' + wrong + b"}\n")
    assert rank.used_tokens is None
    watcher._feed(b'{"type":"load","used_tokens":6}\n')
    assert rank.used_tokens == 6


class Scheduler:
    """A decode rank by steps: takes in what has arrived, publishes, then lets go what is done. The
    router hears of an end, and gets the reading, a little later."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.arriving: dict[int, int] = {}

    def step(self, ending: set[int]) -> dict[str, int]:
        self.sizes |= self.arriving
        self.arriving = {}
        seen = reading(len(self.sizes), sum(self.sizes.values()))
        for lease in ending:
            self.sizes.pop(lease, None)
        return seen


@given(st.data())
def test_behind_one_router_the_load_is_what_was_sent_and_has_not_ended(data: st.DataObject) -> None:
    """Whether a reading comes before or after the news of the ends that it does not show yet, and
    whatever was sent meanwhile."""
    ledger, scheduler = Ledger(complete=True), Scheduler()
    now, own = 0.0, dict[int, int]()
    sizes = st.lists(st.integers(1, 4000), max_size=2)

    def send(when: str) -> None:
        for size in data.draw(sizes, f"sent {when}"):
            lease = ledger.begin(size, now)
            own[lease] = scheduler.arriving[lease] = size

    def hear_of_ends() -> None:
        for lease in set(own) - set(scheduler.sizes) - set(scheduler.arriving):
            ledger.end(lease, own.pop(lease), now)

    ledger.read(scheduler.step(set()), now)
    for _ in range(data.draw(st.integers(1, 12), "steps")):
        send("before the step")
        running = sorted(scheduler.sizes)
        ending = data.draw(st.lists(st.sampled_from(running), max_size=2)) if running else []
        seen = scheduler.step(set(ending))
        now += 0.02
        early = data.draw(st.booleans(), "ends are heard of first")
        if early:
            hear_of_ends()
            send("before the reading")
        now += 0.01
        if data.draw(st.booleans(), "published"):
            ledger.read(seen, now)
        hear_of_ends()
        assert held(ledger, now) == (len(own), sum(own.values()))
        now += 0.02


def test_one_that_was_never_sent_leaves_nothing() -> None:
    for complete in (True, False):
        ledger = Ledger(complete=complete)
        ledger.read(reading(0, 0), 0.0)
        ledger.cancel(ledger.begin(100, 1.0), 100)
        assert (ledger.inflight, ledger.inflight_tokens) == (0, 0)
        assert held(ledger, 1.0) == (0, 0)


def test_without_all_requests_what_was_sent_counts_until_a_reading_has_it() -> None:
    """Others send there, too: nothing is taken off a reading."""
    ledger = Ledger(complete=False)
    assert ledger.load(0.0, heard_at=0.0) is None, "no reading yet"
    ledger.read(reading(3, 300), 0.0)
    ledger.begin(100, 0.1)
    assert held(ledger, 0.1) == (4, 400)
    ledger.read(reading(4, 400), 2.0)
    assert held(ledger, 2.0) == (4, 400)
    ledger.end(1, 100, 2.1)
    assert held(ledger, 2.1) == (4, 400) and ledger.inflight == 0


def test_a_reading_that_is_too_old_is_none() -> None:
    ledger = Ledger(complete=True)
    ledger.read(reading(0, 0), 0.0)
    late = STALE_S + 1.0
    assert ledger.load(late, heard_at=0.0) is None
    assert ledger.load(late, heard_at=late) is not None, "it is idle, and heard"
    ledger.begin(10, 0.0)
    assert ledger.load(late, heard_at=late) is None, "what runs there changes its readings"
    ledger.read(reading(1, 10), late)
    ledger.forget()
    assert ledger.load(late, heard_at=late) is None, "it is gone"


def test_an_impossible_reading_is_for_the_policies_to_see() -> None:
    ledger = Ledger(complete=True)
    ledger.read({**reading(1, 10), "waiting": -1}, 0.0)
    load = ledger.load(0.0, heard_at=0.0)
    assert load is not None and load.waiting == -1


def test_what_is_older_than_the_window_is_not_looked_for_in_a_reading() -> None:
    ledger = Ledger(complete=True)
    for at in (0.0, WINDOW_S + 1.0):
        ledger.begin(100, at)
    assert [event.at for event in ledger._events] == [WINDOW_S + 1.0]


class Forgetful(Ledger):
    """One that makes every load anew."""

    def load(self, now: float, heard_at: float) -> Load | None:
        self._made = None
        return super().load(now, heard_at)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["begin", "begin", "end", "cancel", "read", "read", "nonsense", "forget", "recall",
             "renew", "look", "look", "look", "later"]
        ),
        st.integers(0, 9),
    ),
    min_size=10,
    max_size=60,
)  # fmt: skip


@given(st.booleans(), OPERATIONS)
def test_a_load_that_is_kept_is_the_one_that_would_be_made(
    complete: bool, operations: list[tuple[str, int]]
) -> None:
    ledgers, leases, now = (Ledger(complete), Forgetful(complete)), list[tuple[int, int]](), 1.0
    for what, which in operations:
        now += 0.013 * (which + 1)
        for ledger in ledgers:
            if what == "begin":
                lease = ledger.begin(10 * which, now)
            elif what in ("end", "cancel") and leases:
                lease, tokens = leases[which % len(leases)]
                if what == "end":
                    ledger.end(lease, tokens, now, generated=which)
                else:
                    ledger.cancel(lease, tokens)
            elif what == "read":
                ledger.read(reading(which, 13 * which, which % 2, 5), now)
            elif what == "nonsense":
                ledger.unreadable()
            elif what in ("forget", "recall", "renew"):
                getattr(ledger, what)()
        if what == "begin":
            leases.append((lease, 10 * which))
        elif what in ("end", "cancel") and leases:
            leases.pop(which % len(leases))
        elif what == "later":
            now += 0.4 * STALE_S * which
        one, other = (ledger.load(now, heard_at=now - which / 9 * STALE_S) for ledger in ledgers)
        assert one == other
        assert ledgers[0].load(now, now) is one or one is None or now - ledgers[0].read_at > STALE_S
