"""The acceptance of drafts in an answer that went on here is of the steps that it had here.

SGLang 0.5.21 divides all tokens of the answer by the verifications of this worker
(`TokenizerManager._calculate_spec_decoding_metrics`): of an answer that moved here, or was resumed,
with more than a draft could give (4.9 of at most 4 was seen). Here it is what these verifications
gave, with the one token that SGLang counts beside them: the prefill's.
"""

from collections.abc import Sequence
from typing import Protocol

from patches.base import Hook, Patch, Process
from patches.layers import Original

MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"


class SpeculativeOutput(Protocol):
    """SGLang's `BatchTokenIDOutput`: of each request of a batch, its tokens and verifications."""

    completion_tokens: Sequence[int]


def _of_this_worker(
    original: Original[None],
    manager: object,
    meta_info: dict[str, float],
    recv_obj: SpeculativeOutput,
    i: int,
) -> None:
    original(manager, meta_info, recv_obj, i)
    if "spec_accept_length" not in meta_info:
        return
    verified = meta_info["spec_verify_ct"]
    given = meta_info["spec_num_correct_drafts"] + verified + 1
    if recv_obj.completion_tokens[i] > given:
        meta_info["spec_accept_length"] = given / verified


PATCH = Patch(
    name="accept_length",
    why="an answer that went on here has tokens that this worker's drafts did not give",
    processes=frozenset({Process.MAIN}),
    hooks=(
        Hook(
            f"{MANAGER}._calculate_spec_decoding_metrics",
            _of_this_worker,
            ("self", "meta_info", "recv_obj", "i"),
        ),
    ),
)
