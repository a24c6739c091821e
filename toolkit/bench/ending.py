"""Answers that end by themselves, at a length that only the client knows.

A benchmark needs answers of exact lengths. With `max_new_tokens` and `ignore_eos` it says them to
everybody on the way, also to a router that predicts lengths, which would then be no prediction.
Here every request has the same limit, and SGLang is told by a custom logit processor (workers need
`--enable-custom-logit-processor`) when the token that ends the text is due; it cannot come before.
"""

import json
import pickle
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from toolkit.bench.errors import BenchError
from toolkit.bounded_files import read_json

FLAG = "enable-custom-logit-processor"
_MADE = "_toolkit_tokens_made"


class EndAt:
    """The processor. `logits` [requests, vocabulary]; of each request `custom_params` say `end_at`,
    its length in tokens with the last one, and `eos`, ids that end a text.

    It counts for itself: with the overlap scheduler `output_ids` lags by a step. The first token of
    a decode worker is the one after those that came with the request. What a pass over a part of
    the prompt says is thrown away, and no token.
    """

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any]]) -> Any:
        for row, params in enumerate(custom_param_list):
            req, eos = params["__req__"], params["eos"]
            number, in_parts = 1 + getattr(req, _MADE, len(req.output_ids)), _in_parts(req)
            if not in_parts:
                setattr(req, _MADE, number)
            if in_parts or number < params["end_at"]:
                logits[row, eos] = -float("inf")
            else:
                logits[row] = -float("inf")
                logits[row, eos[:1]] = 0.0
        return logits


def _in_parts(req: Any) -> bool:
    """Whether this pass ends before the prompt does (chunked prefill)."""
    reached = getattr(req, "extend_range", None)
    return reached is not None and reached.end < len(req.origin_input_ids)


@cache
def processor() -> str:
    """`EndAt` as /generate takes it. By reference: workers of this toolkit can import it."""
    return json.dumps({"callable": pickle.dumps(EndAt).hex()})


@dataclass(frozen=True, slots=True)
class Ending:
    """What a run says of all its answers: the `limit` in tokens, and the ids that end a text."""

    limit: int
    eos: tuple[int, ...]

    def of(self, tokens: int) -> dict[str, Any]:
        """Sampling parameters of an answer that ends by itself after so many tokens."""
        return {
            "max_new_tokens": self.limit,
            "custom_params": {"end_at": tokens, "eos": list(self.eos)},
        }


def eos_ids(model: Path | None) -> tuple[int, ...]:
    """The ids that end a text in SGLang: of the model's configuration, and of its generation's.

    BenchError: there are none to be found.
    """
    ids: dict[int, None] = {}
    for name in ("config.json", "generation_config.json"):
        try:
            found = read_json(model / name).get("eos_token_id") if model else None
        except (OSError, ValueError):
            continue
        listed = found if isinstance(found, list) else [found]
        ids |= dict.fromkeys(each for each in listed if isinstance(each, int))
    if ids:
        return tuple(ids)
    raise BenchError(
        f"no eos_token_id in the configuration of {model or 'a model that is not on this machine'}:"
        " answers of hidden lengths need a token that ends them"
    )
