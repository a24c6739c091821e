"""Servers of SGLang's that would answer without the run's key are refused before a start."""

from typing import Any

import pytest

from tests.unit.launch.stand_ins import deployment, tiny_model
from toolkit.contract.unguarded import worker_problems
from toolkit.launch.checks.counted import counted
from toolkit.launch.resolve import resolve

SINGLE: dict[str, Any] = {"grpc_port": None, "tokenizer_worker_num": 1, "moe_a2a_backend": "none"}


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ({}, []),
        ({"tokenizer_worker_num": 2}, ["tokenizer-worker-num"]),
        ({"grpc_port": 0}, ["grpc-port"]),
        ({"grpc_port": 9, "tokenizer_worker_num": 3}, ["grpc-port", "tokenizer-worker-num"]),
    ],
)
def test_each_is_named(flags: dict[str, Any], found: list[str]) -> None:
    assert [problem.where for problem in worker_problems(SINGLE | flags)] == found
    assert worker_problems({}) == []


def test_workers_without_a_key_may_have_them(tmp_path: Any) -> None:
    model = tiny_model(tmp_path)
    resolved = {"decode-0": SINGLE | {"tokenizer_worker_num": 2}}
    (problem,) = counted(resolve(deployment(model)), resolved)
    assert problem.fatal and problem.where == "decode.args.tokenizer-worker-num"
    without = deployment(model, router={"kind": "sglang"})
    assert counted(resolve(without), resolved) == []
