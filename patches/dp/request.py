"""A request as SGLang's DP controller sees it, as policies want it."""

from collections.abc import Sequence
from hashlib import blake2b

from patches.sglang_types import Prompt
from toolkit.policies.base import RequestView
from toolkit.policies.support.user import user_of

BLOCK_TOKENS = 64
MAX_BLOCKS = 256


def request_view(
    req: Prompt, now: float, salt: bytes = b"", blocks: bool = False, prompt_hash: bool = False
) -> RequestView:
    """Of a tokenized request (SGLang's `Prompt*ReqInput`). `now`: monotonic seconds.

    The user is who the `routing_key` names (SGLang fills it from the header `x-smg-routing-key`
    too), else the session, else the `extra_key`: only requests of one extra key can share a
    prefix. OpenAI's `user` does not come this far. `salt` keys the digest. What may be asked for:
    `blocks`, hashes of the prompt's beginning, and `prompt_hash`.
    """
    ids: Sequence[int] = getattr(req, "input_embeds", None) or ()  # in the place of tokens
    if req.input_ids is None:
        blocks = prompt_hash = False
    else:
        ids = req.input_ids
    session = getattr(req, "session_params", None)
    named = {
        "routing_key": getattr(req, "routing_key", None),
        "session_id": getattr(req, "session_id", None) or getattr(session, "id", None),
        "user": getattr(req, "extra_key", None),
    }
    most = getattr(req.sampling_params, "max_new_tokens", None) or 0
    ignores_end = bool(getattr(req.sampling_params, "ignore_eos", False))
    return RequestView(
        prompt_tokens=len(ids),
        blocks=_blocks(ids) if blocks else (),
        user=user_of(named, salt=salt),
        max_new_tokens=most,
        min_new_tokens=most if ignores_end else getattr(req.sampling_params, "min_new_tokens", 0),
        prompt_hash=_digest(bytes(ids)) if prompt_hash else None,
        now=now,
    )


def _digest(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def _blocks(ids: Sequence[int]) -> tuple[int, ...]:
    """Chained: equal up to i means equal tokens up to the end of block i."""
    chain, found = b"", []
    for start in range(
        0, min(len(ids), BLOCK_TOKENS * MAX_BLOCKS) - BLOCK_TOKENS + 1, BLOCK_TOKENS
    ):
        block = bytes(ids[start : start + BLOCK_TOKENS])
        chain = blake2b(chain + block, digest_size=8).digest()
        found.append(int.from_bytes(chain, "big"))
    return tuple(found)
