"""`spec_accept_length` of answers that began elsewhere."""

from types import SimpleNamespace
from typing import Any

import pytest

from patches.http import accept_length


def told(completion: int, verified: int, correct: int) -> dict[str, Any]:
    """As SGLang says it, with the patch around it."""
    found: dict[str, Any] = {}

    def sglangs(_manager: object, meta: dict[str, Any], output: Any, i: int) -> None:
        if verified:
            meta["spec_accept_length"] = output.completion_tokens[i] / verified
            meta |= {"spec_num_correct_drafts": correct, "spec_verify_ct": verified}

    output = SimpleNamespace(completion_tokens=[1, completion])
    accept_length._of_this_worker(sglangs, None, found, output, 1)
    return found


@pytest.mark.parametrize(
    ("completion", "verified", "correct", "wanted"),
    [
        (48, 26, 21, 48 / 26),  # all of it here
        (46, 26, 21, 46 / 26),  # what came behind its stop was cut off
        (100, 10, 8, 19 / 10),  # 81 tokens came along
        (300, 1, 3, 5.0),
    ],
)
def test_it_is_of_the_steps_that_this_worker_did(
    completion: int, verified: int, correct: int, wanted: float
) -> None:
    assert told(completion, verified, correct)["spec_accept_length"] == pytest.approx(wanted)


def test_without_drafts_nothing_is_said() -> None:
    assert told(9, 0, 0) == {}
