"""A request that is copied in rounds while it is decoded: it comes to a short stop wherever KV is
sent faster than it is written, and ends with a reason everywhere else."""

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies.precopy import (
    ENTIRE_S,
    LONGEST_STOP_S,
    PAUSE_STEPS,
    Act,
    Copy,
    Next,
    next_act,
    reserve_for,
)

SMALL, LARGE = 16 * 1024, 160 * 1024
"""Bytes of KV a token: a small MoE model's, a large model's."""


@dataclass
class Link:
    """One copy over a link, step by step. `latency_s`: of each transfer beside its bytes."""

    tokens: int
    token_bytes: int
    step_s: float
    rate: float
    page: int = 1
    latency_s: float = 0.0005
    opens_s: float = 0.1
    reserve: int = 1 << 40
    replay_s: float = 0.0
    gives: tuple[int, ...] = (1,)
    """Tokens of each step, again and again."""
    sends: list[tuple[int, int]] = field(default_factory=list)
    """Pages from, pages to, of each round and of the rest."""

    def run(self, looks: int = 2_000_000) -> tuple[Next, Copy]:
        """Look after each step, as a rank does; the last verdict, and what it was about."""
        sent = rounds = round_bytes = stuck = 0
        round_s = ends = 0.0
        fewest = math.inf
        in_flight, given = False, 0
        mean, most = sum(self.gives) / len(self.gives), max(self.gives)
        for step in range(looks):
            now = step * self.step_s
            complete = self.tokens + given
            if in_flight and now >= ends:
                in_flight, rounds = False, rounds + 1
                begin, end = self.sends[-1]
                size = (end - begin) * self.page * self.token_bytes
                round_bytes, round_s = round_bytes + size, round_s + self._takes(size)
                left = -(-complete // self.page) - sent
                stuck = 0 if left < fewest else stuck + 1
                fewest = min(fewest, left)
            copy = Copy(
                self.page, self.page * self.token_bytes, complete, sent, in_flight,
                now >= self.opens_s, rounds, round_bytes, round_s, stuck, self.step_s, now,
                self.reserve - given, self.replay_s, mean, most,
            )  # fmt: skip
            given += self.gives[step % len(self.gives)]
            then = next_act(copy)
            if then.act == Act.SEND:
                assert not in_flight and copy.due > 0
                self.sends.append((sent, sent + copy.due))
                ends = now + self._takes(copy.due * copy.page_bytes)
                sent, in_flight = sent + copy.due, True
            elif then.act == Act.STOP:
                self.sends.append((sent, copy.pages))
                return then, copy
            elif then.act != Act.WAIT:
                return then, copy
        raise AssertionError("it does not end")

    def _takes(self, size: int) -> float:
        return self.latency_s + size / self.rate

    @property
    def share(self) -> float:
        """Of the link, what the decode writes."""
        return sum(self.gives) / len(self.gives) * self.token_bytes / self.step_s / self.rate


@pytest.mark.parametrize("step_ms", [0.5, 2, 10, 50])
@pytest.mark.parametrize("gb_s", [0.1, 1, 10])
@pytest.mark.parametrize("tokens", [512, 2048, 8192, 32768])
@pytest.mark.parametrize("token_bytes", [SMALL, LARGE])
@pytest.mark.parametrize("page", [1, 16, 64])
def test_it_comes_to_a_short_stop_wherever_kv_is_sent_faster_than_it_is_written(
    step_ms: float, gb_s: float, tokens: int, token_bytes: int, page: int
) -> None:
    link = Link(tokens, token_bytes, step_ms / 1e3, gb_s * 1e9, page)
    then, copy = link.run()
    entire_s = link.opens_s + tokens * token_bytes / link.rate
    if then.act == Act.STOP and then.reason:
        assert copy.pause_s <= LONGEST_STOP_S and link.share >= 0.5
    elif then.act == Act.STOP:
        # In time of two steps, or what two steps write, and the link's own latency.
        written = math.ceil(PAUSE_STEPS / page) * page * token_bytes
        allowed = PAUSE_STEPS * link.step_s + written / link.rate + link.latency_s
        begin, end = link.sends[-1]
        assert (end - begin) * page * token_bytes / link.rate + link.latency_s <= allowed
        assert link.share < 1 or (end - begin) <= PAUSE_STEPS
    else:
        assert then.reason
        # Two rounds' worth of steps are lost to looking at the ends of steps only.
        assert link.share >= 0.5 or entire_s > ENTIRE_S / 2, (link.share, then)


@pytest.mark.parametrize("gives", [(4,), (1, 4), (1, 1, 2)])
@pytest.mark.parametrize("tokens", [512, 8192])
@pytest.mark.parametrize("page", [1, 16])
def test_steps_that_give_several_tokens_write_more_and_use_places_up_sooner(
    gives: tuple[int, ...], tokens: int, page: int
) -> None:
    link = Link(tokens, SMALL, 0.004, 1e9, page, gives=gives)
    then, copy = link.run()
    assert then == Next(Act.STOP)
    begin, end = link.sends[-1]
    written = math.ceil(PAUSE_STEPS * max(gives) / page) * page * SMALL
    allowed = PAUSE_STEPS * link.step_s + written / link.rate + link.latency_s
    assert (end - begin) * page * SMALL / link.rate + link.latency_s <= allowed
    used = copy.complete - tokens
    for reserve in range(used + 12):
        then, copy = Link(tokens, SMALL, 0.004, 1e9, page, reserve=reserve, gives=gives).run()
        assert then.act != Act.STOP or copy.reserve >= 0, "it would write where no place is kept"


@pytest.mark.parametrize("step_ms", [0.5, 2, 10, 50])
@pytest.mark.parametrize("gb_s", [0.1, 1, 10])
def test_it_is_over_soon_after_all_has_been_sent_once(step_ms: float, gb_s: float) -> None:
    link = Link(8192, SMALL, step_ms / 1e3, gb_s * 1e9)
    then, copy = link.run()
    assert then.act == Act.STOP
    tokens = 8192 + link.opens_s / link.step_s
    once_s = link.opens_s + tokens * SMALL / link.rate / (1 - link.share)
    looks = 2 * (copy.rounds + 1) * (link.step_s + link.latency_s)  # each round ends between two
    assert copy.rounds < 20 and copy.entire_s <= once_s + looks / (1 - link.share)


def test_what_the_h200_could_not_move() -> None:
    """Steps of 1.9 ms, 8,192 tokens of 16 KiB: 134 MB over TCP, which take longer than the 16 to
    96 steps that a direct move once had."""
    link = Link(8192, SMALL, 0.0019, 1e9)
    then, copy = link.run()
    assert then.act == Act.STOP and copy.entire_s > 96 * link.step_s
    assert copy.pause_s <= PAUSE_STEPS * link.step_s + 2 * SMALL / link.rate


@pytest.mark.parametrize("share", [1.0, 1.5, 4.0])
def test_a_link_that_is_slower_than_the_decode_is_given_up_after_one_round(share: float) -> None:
    link = Link(4096, LARGE, 0.001, LARGE / 0.001 / share, latency_s=0.0)
    then, copy = link.run()
    assert then.act in (Act.GIVE_UP, Act.REPLAY)
    assert copy.rounds == 1 and "MB of KV a second" in then.reason


def test_to_compute_it_again_is_chosen_where_that_takes_less() -> None:
    slow = Link(4096, LARGE, 0.001, LARGE / 0.001 / 0.99, replay_s=0.05)
    assert slow.run()[0].act == Act.REPLAY
    slow = Link(4096, LARGE, 0.001, LARGE / 0.001 / 1.01, replay_s=1e6)
    assert slow.run()[0].act == Act.GIVE_UP
    # Where none was measured: all of the KV over the same link, which takes longer than a stop.
    assert Link(4096, LARGE, 0.001, LARGE / 0.001 / 1.01).run()[0].act == Act.GIVE_UP


def test_a_target_that_does_not_say_where_to_send_uses_the_places_up() -> None:
    then, copy = Link(4096, SMALL, 0.001, 1e9, opens_s=math.inf, reserve=100).run()
    assert then.act == Act.GIVE_UP and "has not said" in then.reason
    assert copy.reserve == 0
    then, copy = Link(4096, SMALL, 1.0, 1e9, opens_s=math.inf).run()
    assert then.act == Act.GIVE_UP and copy.entire_s == ENTIRE_S


def test_what_the_h100_could_not_move() -> None:
    """8,192 tokens of 16 KiB over Mooncake's TCP at 70 MB/s, steps of 1.9 ms, and places that two
    rounds nearly take: what is left takes 30 ms then, and nobody waits less for anything else."""
    link = Link(8192, SMALL, 0.0019, 70e6, latency_s=0.002, reserve=1210)
    then, copy = link.run()
    assert then.act == Act.STOP and "another round" in then.reason
    assert PAUSE_STEPS * link.step_s < copy.pause_s <= LONGEST_STOP_S and copy.reserve >= 0
    many = Link(8192, SMALL, 0.0019, 70e6, latency_s=0.006, reserve=4000)
    then, copy = many.run()
    assert then == Next(Act.STOP) and copy.pause_s <= PAUSE_STEPS * link.step_s


def test_a_long_stop_is_not_made_for_want_of_places() -> None:
    link = Link(8192, LARGE, 0.05, 10e6, reserve=2700)
    then, copy = link.run()
    assert then.act in (Act.GIVE_UP, Act.REPLAY) and copy.pause_s > LONGEST_STOP_S


def test_places_that_are_used_up_end_it() -> None:
    then, copy = Link(32768, LARGE, 0.001, 1e9, reserve=200).run()
    assert then.act in (Act.GIVE_UP, Act.REPLAY) and "room" in then.reason
    assert copy.reserve == 0


@given(
    tokens=st.integers(1, 5000),
    token_bytes=st.integers(1, 1 << 20),
    step_s=st.floats(1e-4, 0.1),
    rate=st.floats(1e4, 1e12),
    page=st.sampled_from([1, 2, 16, 64]),
    latency_s=st.floats(0, 0.1),
    opens_s=st.floats(0, 3),
    reserve=st.integers(0, 3000),
    replay_s=st.floats(0, 10),
)
def test_it_always_ends_sends_nothing_twice_and_stops_only_when_that_is_short(
    tokens: int, token_bytes: int, step_s: float, rate: float, page: int, latency_s: float,
    opens_s: float, reserve: int, replay_s: float,
) -> None:  # fmt: skip
    link = Link(tokens, token_bytes, step_s, rate, page, latency_s, opens_s, reserve, replay_s)
    then, copy = link.run()
    at = 0
    for begin, end in link.sends:
        assert begin == at and end > begin
        at = end
    if then.act == Act.STOP:
        assert at == copy.pages and copy.reserve >= 0
        least = copy.pages - copy.sent <= max(1, PAUSE_STEPS // page)
        longest = LONGEST_STOP_S if then.reason else PAUSE_STEPS * step_s
        assert least or copy.left / copy.rate <= longest
    else:
        assert then.act in (Act.GIVE_UP, Act.REPLAY) and then.reason
        assert at <= copy.whole


@given(
    tokens=st.integers(0, 1 << 20),
    rate=st.floats(0, 1e9),
    step_s=st.floats(0, 1),
    most=st.integers(1, 8192),
)
def test_places_are_some_and_not_too_many(
    tokens: int, rate: float, step_s: float, most: int
) -> None:
    assert 1 <= reserve_for(tokens, rate, step_s, most) <= most


def test_places_follow_what_was_measured() -> None:
    few = reserve_for(8192, 1e6, 0.05, 8192)
    many = reserve_for(8192, 1e4, 0.001, 8192)
    assert few == reserve_for(8192, 0.0, 0.0, 8192) < many
    assert many >= 8192 / 1e4 / 0.001  # all of it may take so many steps
