"""Instances for tests of the mover, and the world after its moves."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.moving import Instance, PlannedMove, RunningRequest


def holding(
    rank: int, lengths: Iterable[int], stage: int = 0, free: int = 100_000, **more: object
) -> Instance:
    """Requests are called (rank, place)."""
    running = tuple(RunningRequest((rank, i), length) for i, length in enumerate(lengths))
    made = Instance(rank, stage, running, free_tokens=free, slots_free=100)
    return replace(made, **more)  # type: ignore[arg-type]


def _more(spare: int | None, tokens: int) -> int | None:
    return None if spare is None else spare + tokens


def begun(instances: Sequence[Instance], moves: Sequence[PlannedMove]) -> list[Instance]:
    """The moves are on their way."""
    now = {each.rank: each for each in instances}
    for move in moves:
        source, target = now[move.source], now[move.target]
        (request,) = [each for each in source.running if each.request == move.request]
        left = tuple(
            replace(each, moving=True) if each is request else each for each in source.running
        )
        now[move.source] = replace(source, running=left, moving=source.moving + 1)
        now[move.target] = replace(
            target,
            coming_tokens=target.coming_tokens + request.length,
            free_tokens=target.free_tokens - request.length,
            spare_tokens=_more(target.spare_tokens, -request.length),
            slots_free=target.slots_free - 1,
            moving=target.moving + 1,
        )
    return [now[each.rank] for each in instances]


def ended(instances: Sequence[Instance], moves: Sequence[PlannedMove]) -> list[Instance]:
    """The moves were made, and are over."""
    now = {each.rank: each for each in begun(instances, moves)}
    for move in moves:
        source, target = now[move.source], now[move.target]
        (request,) = [each for each in source.running if each.request == move.request]
        now[move.source] = replace(
            source,
            running=tuple(each for each in source.running if each is not request),
            free_tokens=source.free_tokens + request.length,
            spare_tokens=_more(source.spare_tokens, request.length),
            slots_free=source.slots_free + 1,
            moving=source.moving - 1,
        )
        now[move.target] = replace(
            target,
            running=(*target.running, replace(request, moving=False)),
            coming_tokens=target.coming_tokens - request.length,
            moving=target.moving - 1,
        )
    return [now[each.rank] for each in instances]


LAYOUTS = st.sampled_from(
    [
        None,
        Layout.of([(None, 4)]),
        Layout.of([(100, 2), (None, 2)]),
        Layout.of([(64, 1), (256, 2), (None, 1)]),
    ]
)


@st.composite
def auctions(draw: st.DrawFn, layout: Layout | None) -> list[Instance]:
    """Up to six instances with up to eight requests each, in any state."""
    stages = len(layout.stages) if layout else 1
    instances = []
    for rank in range(draw(st.integers(1, 6))):
        lengths = draw(st.lists(st.integers(1, 600), max_size=8))
        running = tuple(
            RunningRequest(
                (rank, i), length, draw(st.integers(0, 4)) > 0, draw(st.integers(0, 6)) == 0
            )
            for i, length in enumerate(lengths)
        )
        moving = sum(each.moving for each in running)
        free = draw(st.integers(0, 3000))
        instances.append(
            Instance(
                rank,
                draw(st.integers(0, stages - 1)),
                running,
                draw(st.sampled_from([0, 0, 50, 700])),
                free,
                draw(st.integers(0, 5)),
                draw(st.sampled_from([0.0, 100.0, 5000.0])),
                moving,
                draw(st.integers(0, 5)) == 0,
                draw(st.none() | st.integers(free, free + 2000)),
            )
        )
    return instances
