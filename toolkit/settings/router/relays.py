"""How many relay processes a router has, where its file says `relays: auto`."""

STREAMS = 1000
"""Streams that one relay carries: at 30 tokens a second each, half of what a core can."""
CORES = 4
"""Of the machine's cores, one relay for so many: workers, and the deciding process, need others."""


def automatic(cores: int, max_inflight: int, routers: int = 1) -> int:
    """By the cores that there are, the requests that may run, and the routers that share them."""
    return max(1, min(-(-max_inflight // STREAMS), cores // (CORES * routers)))
