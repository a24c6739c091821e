"""The page "Path of a request" names what a router really calls, in the order in which it does."""

import ast
import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, expected, idle, prompt_of, run, text_of

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "pages" / "path.md"
PATH = "/v1/chat/completions"
TOKENS = 30
QUIET_S, MOST_S = 1.2, 2.4
"""A connection to a worker that nobody used for longer is not used again."""
DEATH = "When decode dies"
SIDE_BY_SIDE = ("The first token", "Decode")
"""The first token's answer and the event of the same prefill come on two connections."""


def sections() -> dict[str, list[str]]:
    """Heading -> the places of its table, one a row."""
    found = {}
    for part in PAGE.read_text().split("\n## ")[1:]:
        heading, _, text = part.partition("\n")
        places = re.findall(r"^\| `([\w/]+\.py:[\w.]+)` \|", text, re.M)
        if places:
            found[heading] = places
    return found


def defined(path: Path) -> set[str]:
    """Every function of a file, by its qualified name."""

    def walk(node: ast.AST, prefix: str) -> set[str]:
        names = set()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                names |= walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(f"{prefix}{child.name}")
        return names

    return walk(ast.parse(path.read_text()), "") if path.exists() else set()


async def steady(calls: Path) -> None:
    """Until nothing is called any more for the first time: what goes on without requests goes on
    at least once a second, and later where the machine is busy."""
    begun = since = time.monotonic()
    size = 0
    while time.monotonic() - since < QUIET_S and time.monotonic() - begun < MOST_S:
        now = calls.with_suffix(".first").stat().st_size
        if now > size:
            size, since = now, time.monotonic()
        await asyncio.sleep(0.2)


def traced(folder: Path, **extra: Any) -> tuple[list[str], set[str]]:
    """The calls of a router that serves one streaming chat request, from its accept on; and what it
    had called before."""

    async def serve() -> None:
        async with Cluster(
            router_module="tests.standin.traced_router",
            env={"ROUTER_TRACE": str(folder / "calls")},
            worker_args=["--token-ms", "2"],
            role_args={"prefill": ["--first-token", "--done-ms", "20"]},
            config={"first_token": "prefill", "rerun_wait_s": 20},
        ) as cluster:
            await steady(folder / "calls")
            async with aiohttp.ClientSession() as own:  # a connection that the test can tell apart
                body = bodies(TOKENS, **extra)[PATH]
                async with own.post(cluster.url + PATH, json=body) as answer:
                    text = text_of(PATH, await answer.read())
            assert text == expected(prompt_of(PATH), TOKENS)
            await cluster.until(idle)

    run(serve())
    calls = (folder / "calls").read_text().splitlines()
    served = calls.index("toolkit/router/data_plane.py:DataPlane.serve")
    while not calls[served].endswith("Listener._accept"):
        served -= 1
    return calls[served:], set(calls[:served])


def assert_in_order(places: Sequence[str], calls: Sequence[str]) -> int:
    """Each place is called after the one before. Returns where the last one is."""
    at = 0
    for place in places:
        assert place in calls[at:], (
            f"docs/pages/path.md has {place}, not called here; before: {calls[:at][-8:]}"
        )
        at = calls.index(place, at)
    return at


MOST_MODULES, MOST_FUNCTIONS = 67, 298
"""That a request calls and that nothing had called before it, neither the start nor what goes on
without requests: 65 and 290, and some more on a slow machine. They may only go down, as a reader
has to open what is counted here. The aim was 20 and 120 (docs/pages/design/one-decider.md says what
became of it)."""


def test_a_request_goes_through_no_more_places_than_it_did(
    run_of_one: tuple[list[str], set[str]],
) -> None:
    calls, before = run_of_one
    ended = len(calls) - 1 - calls[::-1].index("toolkit/router/known_requests.py:KnownRequests.end")
    places = set(calls[: ended + 1]) - before
    modules = {place.partition(":")[0] for place in places}
    assert len(modules) <= MOST_MODULES, (len(modules), sorted(modules))
    assert len(places) <= MOST_FUNCTIONS, len(places)


def test_every_place_of_the_page_is_in_the_tree() -> None:
    named = re.findall(r"`([\w/]+\.py):([\w.]+)`", PAGE.read_text())
    assert len(named) > 50
    lacking = [(path, name) for path, name in named if name not in defined(ROOT / path)]
    assert not lacking, f"docs/pages/path.md names what is not there: {lacking}"


@pytest.fixture(scope="module")
def run_of_one(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], set[str]]:
    return traced(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def calls(run_of_one: tuple[list[str], set[str]]) -> list[str]:
    return run_of_one[0]


@pytest.mark.parametrize("heading", [name for name in sections() if name != DEATH])
def test_a_section_is_in_the_order_of_the_calls(heading: str, calls: list[str]) -> None:
    places = sections()[heading]
    begins = calls.index(places[0]) if heading not in SIDE_BY_SIDE else 0
    assert_in_order(places, calls[begins:])


def test_sections_follow_one_another(calls: list[str]) -> None:
    at = 0
    for heading, places in sections().items():
        if heading == DEATH or heading in SIDE_BY_SIDE:
            continue
        at += assert_in_order(places, calls[at:])


def test_the_death_of_a_decode_goes_through_the_places_of_the_page(tmp_path: Path) -> None:
    calls, _ = traced(tmp_path, crash_after=12)
    # The worker's event stream may break before the connection of the request does.
    broken = calls.index("toolkit/router/attempt/outcomes.py:Outcomes.lost")
    while not calls[broken].endswith("upstream.py:UpstreamConnection.connection_lost"):
        broken -= 1
    assert_in_order(sections()[DEATH], calls[broken:])
