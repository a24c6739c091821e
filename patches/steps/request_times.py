"""How long a request took from its first decode token on this worker to its last.

TPOT where the tokens are made: without the network, the router, the detokenizer and the client,
all of which want cores too where workers run on CPU.
"""

from patches.sglang_types import Req

FIELDS = ("end", "output_tokens", "seconds", "cpu_seconds", "prompt_tokens", "timed_tokens")
"""Columns of the row of a finished request. `end` is the worker's monotonic clock at its last step.
`seconds` and `cpu_seconds` (those of `patches.steps.step_log`) run from the end of the step that
gave its first decode token on this worker to the end of the one that gave its last, and
`timed_tokens` are the tokens that came in that time: TPOT = seconds / timed_tokens. Neither the
token of the prefill nor the first decode token is among them (what comes before that one's end is
KV transfer and waiting for the next step), so a request of N tokens has N - 2 under PD and less
when it was resumed here; with 0 it has no TPOT. `output_tokens` are all N that its client got.
Requests that were aborted or retracted, or that never took part in a decode step, have no row."""
_MARK = "_toolkit_decode_start"


def finished_rows(reqs: list[Req], decode: bool, end: float, cpu: float) -> list[list[float]]:
    """Rows of those of a step's requests that it finished; in a decode step, those that are new
    get their mark: the two clocks at its end and how many tokens they have."""
    rows = []
    for req in [req for req in reqs if not hasattr(req, _MARK)] if decode else ():
        setattr(req, _MARK, (end, cpu, len(req.output_ids)))
    for req in [req for req in reqs if req.finished()]:
        since, since_cpu, had = getattr(req, _MARK, (None, 0.0, 0))
        assert req.finished_reason is not None, "it is finished"
        aborted = req.finished_reason.to_json()["type"] == "abort"
        if since is None or aborted or req.retraction_count:
            continue
        tokens = len(req.output_ids_through_stop)
        # What follows a stop in the same step (speculative decoding) is cut off.
        timed = max(0, tokens - had)
        prompt = len(req.origin_input_ids)
        times = [end - since, cpu - since_cpu]
        rows.append([end, float(tokens), *times, float(prompt), float(timed)])
    return rows
