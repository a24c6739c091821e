"""Answers of hidden lengths: what the processor does to logits, and what a request says."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.bench.client import payload
from toolkit.bench.ending import EndAt, Ending, eos_ids, processor
from toolkit.bench.errors import BenchError
from toolkit.bench.workload import Item
from toolkit.embedded import model_path

EOS = (2, 0)


@dataclass
class Req:
    """SGLang's, as far as it matters; `lag`: tokens that are sampled but not in `output_ids`."""

    output_ids: list[int] = field(default_factory=list)
    origin_input_ids: tuple[int, ...] = (5,) * 10
    extend_range: Reached | None = None


def generate(requests: list[tuple[Req, int]], steps: int, lag: int) -> list[list[int]]:
    """Greedy answers of a batch whose model wants to end all the time; who has ended stays."""
    source = np.random.default_rng(0)
    made: list[list[int]] = [list(req.output_ids) for req, _ in requests]
    call = pickle.loads(bytes.fromhex(json.loads(processor())["callable"]))()
    for _ in range(steps):
        logits = source.random((len(requests), 8))
        logits[:, 2] = 9.0
        params = [{"end_at": n, "eos": list(EOS), "__req__": req} for req, n in requests]
        for (req, _), ids, token in zip(
            requests, made, call(logits, params).argmax(axis=1), strict=True
        ):
            ids.append(int(token))
            req.output_ids = ids[: max(len(req.output_ids), len(ids) - lag)]
    return made


@given(st.lists(st.integers(2, 9), min_size=1, max_size=5), st.integers(0, 1), st.booleans())
def test_every_answer_ends_where_it_should(lengths: list[int], lag: int, decode: bool) -> None:
    """On one worker, and on a decode worker that gets the first token from its prefill."""
    had = [7] if decode else []
    made = generate([(Req(list(had)), n) for n in lengths], 9, lag)
    assert [next(i for i, t in enumerate(ids, 1) if t in EOS) for ids in made] == lengths


@dataclass
class Reached:
    end: int


def test_a_pass_over_a_part_of_the_prompt_makes_no_token() -> None:
    """An answer of two tokens whose prompt came in three chunks: the first token ends nothing."""
    req, ends = Req(), []
    for end in (4, 8, 10, 11):
        req.extend_range = Reached(end)
        logits = np.zeros((1, 8))
        logits[0, 2] = 9.0
        params = [{"end_at": 2, "eos": list(EOS), "__req__": req}]
        ends.append(int(EndAt()(logits, params).argmax(axis=1)[0]) in EOS)
    assert ends == [False, False, False, True]


def test_the_worker_finds_the_processor_by_its_name() -> None:
    assert pickle.loads(bytes.fromhex(json.loads(processor())["callable"])) is EndAt


def test_a_request_does_not_tell_its_length_to_a_router() -> None:
    ending = Ending(300, EOS)
    one, two = (payload("generate", "", Item((1, 2), n), True, ending) for n in (5, 250))
    for body, tokens in ((one, 5), (two, 250)):
        assert body["sampling_params"].pop("custom_params") == {"end_at": tokens, "eos": [2, 0]}
    assert one == two
    assert "ignore_eos" not in one["sampling_params"]
    assert one["sampling_params"]["max_new_tokens"] == 300
    with pytest.raises(ValueError, match="only /generate"):
        payload("chat", "m", Item("x", 5), True, ending)


def test_what_ends_a_text_is_in_the_model_folder(tmp_path: Path) -> None:
    assert eos_ids(Path(model_path())) == (2, 0)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BenchError, match="no eos_token_id"):
        eos_ids(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert eos_ids(tmp_path) == (5, 6)
    (tmp_path / "config.json").write_text('{"eos_token_id": 6}')
    assert eos_ids(tmp_path) == (6, 5)
    with pytest.raises(BenchError, match="not on this machine"):
        eos_ids(None)
