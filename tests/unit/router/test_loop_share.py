"""What the event loop itself does with a hostile body grows no faster than the body."""

from time import thread_time

import pytest

from tests.cpu_time import TRIES, no_collector
from tests.hostile_bodies import HOSTILE, Hostile
from toolkit.router.budget import Budget
from toolkit.router.errors import ApiError
from toolkit.router.parsing import Parser
from toolkit.router.request import Job

KIB = 1024
SIZES = (16, 64, 256)
REPEATS = 7


class Elsewhere(Exception):
    """The body would go to a process now."""


class Inline(Parser):
    """A parser whose trips end where they begin: what is left is the loop's share."""

    async def _turn(self, client: str, large: bool) -> None:  # type: ignore[override]
        raise Elsewhere


async def _once(path: str, raw: bytes) -> tuple[float, str]:
    """CPU seconds of the loop, and what came of it."""
    with Budget(2**30).open() as charge:
        begin = thread_time()
        try:
            job: Job = await Inline().parse(path, [raw], charge, limit=512)
            what = f"{len(job.sub_requests)} parts"
        except Elsewhere:
            what = "elsewhere"
        except ApiError as error:
            what = str(error.status)
        return thread_time() - begin, what


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda each: each.name)
async def test_growth(hostile: Hostile) -> None:
    """Sixteen times the body: at most 32 times the time, and a ms for what no clock tells."""
    bodies = [hostile.make(size * KIB) for size in SIZES]
    for _ in range(TRIES):
        least = []
        for raw in bodies:
            with no_collector():
                runs = [await _once(hostile.path, raw) for _ in range(REPEATS)]
            least.append(min(seconds for seconds, _ in runs))
        small, middle, large = least
        if middle <= 8 * small + 0.001 and large <= 32 * small + 0.001:
            return
    raise AssertionError(dict(zip(SIZES, least, strict=True)))


async def test_what_is_compiled_or_has_many_parts_is_for_processes() -> None:
    """Nearly all of them: what stays is text, ids and broken JSON."""
    stay = set()
    for hostile in HOSTILE:
        _, what = await _once(hostile.path, hostile.make(64 * KIB))
        if what != "elsewhere":
            stay.add(hostile.name)
    assert stay <= {
        "JSON: broken at its end", "JSON: too deep", "text: escapes", "text: beyond 16 bits",
        "messages: many", "samples: many", "samples: large",
    }  # fmt: skip
