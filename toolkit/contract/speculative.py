"""Speculative decoding, which nothing here counts right. Checked against SGLang 0.5.21.

A step then gives a request one token or several. The step log takes a step for one token, and so
does the router where an answer does not stream (`RankState.stepped`); the capturer's
buffer has no room for the tokens of a verification and keeps rejected ones
(state_capturer/routed_experts.py, "num_verify_tokens"); KV that a decode worker takes early, or
that a resumed request continues, was never tried with it. It does not run on a CPU, so none of it
can be tested here: `NGRAM` imports `sgl_kernel.speculative`, which only CUDA builds have, and
`STANDALONE` and `EAGLE` have no draft backend for `torch_native` ("EAGLE is not supported in decode
attention backend torch_native").
"""

from collections.abc import Mapping
from typing import Any

from toolkit.errors import Problem


def worker_problems(resolved: Mapping[str, Any]) -> list[Problem]:
    """Problems of one worker by its `patches.check_args` values; `where` is a flag."""
    algorithm = resolved.get("speculative_algorithm")
    if not algorithm:
        return []
    what = f"{algorithm} gives several tokens a step: steps, lengths of answers that do not stream "
    what += "and captured experts would be counted wrong"
    return [Problem("speculative-algorithm", what, "leave it out")]
