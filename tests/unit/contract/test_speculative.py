"""Which speculative decoding is taken, and what the refusal of the rest says."""

from typing import Any

import pytest

from toolkit.contract.speculative import worker_problems

EAGLE = {
    "speculative_algorithm": "EAGLE",
    "speculative_eagle_topk": 1,
    "disaggregation_mode": "decode",
    "enable_return_routed_experts": True,
}
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "ngram on decode": ({"speculative_algorithm": "NGRAM"}, "algorithm", "first request"),
    "standalone on decode": ({"speculative_algorithm": "STANDALONE"}, "algorithm", "no state"),
    "dspark": ({"speculative_algorithm": "DSPARK"}, "algorithm", "not tried"),
    "ngram, plain": (
        {"speculative_algorithm": "NGRAM", "disaggregation_mode": "null"}, "algorithm", "not tried",
    ),
    "placed experts": ({"ep_dispatch_algorithm": "static"}, "", "experts of other slots"),
    "a tree": ({"speculative_eagle_topk": 2}, "eagle-topk", "prefill and decode apart"),
    "a tree, captured": (
        {"speculative_eagle_topk": 2, "disaggregation_mode": "null"}, "eagle-topk", "KV slots",
    ),
}  # fmt: skip
TAKEN: dict[str, dict[str, Any]] = {
    "a chain": {},
    "another draft": {"speculative_algorithm": "EAGLE3"},
    "a tree on plain workers": {
        "speculative_eagle_topk": 2,
        "disaggregation_mode": "null",
        "enable_return_routed_experts": False,
    },
    "placed experts behind an all-to-all": {
        "ep_dispatch_algorithm": "static",
        "moe_a2a_backend": "deepep",
    },
    "none": {"speculative_algorithm": None},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_was_not_tried_is_refused_with_the_reason(name: str) -> None:
    changed, where, why = REFUSED[name]
    (problem,) = worker_problems(EAGLE | changed)
    assert problem.where == (f"speculative-{where}" if where else "ep-dispatch-algorithm")
    assert why in problem.what and problem.fatal


@pytest.mark.parametrize("name", TAKEN)
def test_what_was_tried_is_taken(name: str) -> None:
    assert worker_problems(EAGLE | TAKEN[name]) == []
