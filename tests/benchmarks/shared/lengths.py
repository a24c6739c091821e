"""Traffic of long-tailed lengths over DP ranks, and the load balancers it is measured against."""

from tests.benchmarks.shared.kinds import draw, of_trace, scaled
from toolkit.bench.synthetic import TokenPool
from toolkit.bench.traces import TraceRow
from toolkit.bench.workload import Item, Workload

WAITING = 8
"""Requests in flight for each rank beyond its slots."""
LONGEST = (2000, 512)


def workload(
    rows: list[TraceRow] | None, pool: TokenPool, seed: int, count: int, means: tuple[float, float]
) -> Workload:
    """`count` requests with prompts of their own."""
    lengths = draw(count, seed) if rows is None else of_trace(rows, count, seed)
    items = [
        Item(pool.block(f"imbalance-{seed}-{n}", one.prompt), one.answer, user=one.user)
        for n, one in enumerate(scaled(lengths, *means, LONGEST))
    ]
    return Workload(f"lengths-{seed}", tuple(items))
