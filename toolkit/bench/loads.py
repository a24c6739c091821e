"""What every decode worker held over time, for a page and the JSON file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolkit.bench.balance import RankTrack

if TYPE_CHECKING:
    from toolkit.bench.decode import DecodeSteps

PIECES = 120
SAMPLES = 10
"""Moments whose mean is a piece's value: a step may be shorter than a piece."""
HELD = {"requests": "requests", "kv_tokens": "KV tokens"}


def over_time(decode: DecodeSteps) -> dict[str, Any] | None:
    """{"seconds": [T], "workers": {name: {"requests": [T], "kv_tokens": [T]}}}: means of PIECES
    equal parts of the time from the first step's start to the last one's end; `seconds` are the
    parts' middles. A worker between two steps holds nothing. None where no worker made a step."""
    import numpy as np

    if not any(len(rank.steps) for rank in decode.ranks):
        return None
    at = {name: decode.columns.index(name) for name in ("end", "seconds", *HELD)}
    known = [rank for rank in decode.ranks if len(rank.steps)]
    first = min(float((r.steps[:, at["end"]] - r.steps[:, at["seconds"]]).min()) for r in known)
    last = max(float(r.steps[:, at["end"]].max()) for r in known)
    size = (last - first) / PIECES
    moments = first + size / SAMPLES * (np.arange(PIECES * SAMPLES) + 0.5)
    workers = {}
    for rank in decode.ranks:
        workers[rank.name] = {name: [0.0] * PIECES for name in HELD}
        for name in HELD if len(rank.steps) else ():
            track = RankTrack.of(*(rank.steps[:, at[key]] for key in ("end", "seconds", name)))
            means = track.at(moments).reshape(PIECES, SAMPLES).mean(axis=1)
            workers[rank.name][name] = [round(float(mean), 2) for mean in means]
    middles = size * (np.arange(PIECES) + 0.5)
    return {"seconds": [round(float(each), 4) for each in middles], "workers": workers}
