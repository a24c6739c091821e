"""Ranks and requests that wait for them, drawn by Hypothesis."""

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from toolkit.policies import Load, RequestView, WorkerView

NAN: Any = math.nan


sane = st.integers(0, 3000)


impossible: st.SearchStrategy[Any] = st.sampled_from([-5, -(2**70), math.nan, math.inf, 2**60])


numbers = sane | sane | sane | impossible


loads = st.none() | st.builds(
    Load,
    running=st.integers(0, 8) | impossible,
    waiting=st.integers(0, 2),
    used_tokens=numbers,
    total_tokens=st.sampled_from([0, 2000, 4000]) | impossible,
    waiting_tokens=st.integers(0, 200),
    sent_requests=st.integers(0, 2),
    sent_tokens=numbers,
)


@st.composite
def fleets(draw: st.DrawFn) -> list[WorkerView]:
    return [
        WorkerView(
            f"w{at}",
            dp_rank=draw(st.integers(0, 1)),
            healthy=draw(st.booleans() | st.just(True)),
            inflight=draw(st.integers(0, 8)),
            inflight_tokens=draw(numbers),
            load=draw(loads),
            slots=draw(st.sampled_from([0, 4, 8])),
            reserve=draw(st.sampled_from([0, 0, 100, 600])),
        )
        for at in range(draw(st.integers(0, 6)))
    ]


signatures = st.none() | st.lists(st.integers(0, 9), min_size=4, max_size=4).map(
    lambda values: np.array(values, np.float32) / 18
)


pools = st.lists(
    st.builds(
        RequestView,
        prompt_tokens=st.integers(0, 2500) | impossible,
        signature=signatures,
        user=st.sampled_from([None, "ada"]),
    ),
    max_size=12,
)


def rank(at: int, tokens: int, running: int = 0, slots: int = 8, **more: int) -> WorkerView:
    fields = {"waiting": 0, "total_tokens": 0, "waiting_tokens": 0} | more
    load = Load(running=running, used_tokens=tokens, **fields)
    return WorkerView("decode", dp_rank=at, load=load, slots=slots)
