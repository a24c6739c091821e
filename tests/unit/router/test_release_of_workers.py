"""What a client is told who asks for a field that the workers' release of SGLang does not have."""

import json
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, post
from toolkit.contract.events import Hello
from toolkit.router.errors import ApiError
from toolkit.router.known_workers import KnownWorkers
from toolkit.router.splitting import parse
from toolkit.router.validate.check import check
from toolkit.router.validate.declared import RELEASES, lacks, since
from toolkit.router.validate.endpoints import ENDPOINTS
from toolkit.router.validate.field import Fate, Field
from toolkit.router.validate.limits import BodyLimits
from toolkit.router.validate.models import known
from toolkit.settings.router.config import RouterConfig
from toolkit.settings.router.permissions import ALLOWABLE

EVERYTHING = frozenset(ALLOWABLE)
BASES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "a"}]},
    "completions": {"prompt": "a"},
    "generate": {"text": "a"},
    "responses": {"input": "a"},
    "score": {},
}
LACKING = [
    (endpoint, row, release)
    for endpoint, rows in ENDPOINTS.items()
    for row in rows.values()
    for release in RELEASES
    if row.passes(EVERYTHING) and lacks(endpoint, row.name, release)
]


def before(release: str) -> tuple[str, ...]:
    """Known releases that came earlier."""
    return RELEASES[: RELEASES.index(release)]


def from_release(release: str) -> tuple[str, ...]:
    """That one and later ones."""
    return RELEASES[RELEASES.index(release) :]


def on(release: str, allow: frozenset[str] = frozenset()) -> BodyLimits:
    return BodyLimits(1000, allow, release)


def message(endpoint: str, body: dict[str, Any], limits: BodyLimits) -> str:
    with pytest.raises(ApiError) as error:
        check(endpoint, body, limits)
    assert error.value.status == 400
    return error.value.message


@pytest.mark.parametrize(
    ("endpoint", "row", "release"),
    [pytest.param(*each, id=f"{each[0]}.{each[1].name}-{each[2]}") for each in LACKING],
)
def test_what_a_release_lacks_no_worker_of_it_sees(endpoint: str, row: Field, release: str) -> None:
    limits = on(release, EVERYTHING)
    if row.lacking is Fate.REFUSE:
        told = message(endpoint, {**BASES[endpoint], row.name: {"a": 1}}, limits)
        assert row.name in told and release in told and since(endpoint, row.name) in told
    for value in (None, False, {"a": 1} if row.lacking is Fate.DROP else row.default):
        assert row.name not in check(endpoint, {**BASES[endpoint], row.name: value}, limits)


def test_there_are_such_fields() -> None:
    names = {(endpoint, row.name) for endpoint, row, _ in LACKING}
    assert names >= {("chat", "watermark"), ("generate", "cache_salt"), ("chat", "thinking")}
    assert not any(release == RELEASES[-1] for _, _, release in LACKING)
    fields = [known(endpoint, EVERYTHING).required & {row.name} for endpoint, row, _ in LACKING]
    assert not any(fields), "a release that lacks what is required"


def test_a_release_that_has_it_gets_it() -> None:
    chat = BASES["chat"]
    asked = {"watermark": {"enabled": True}}
    said = message("chat", chat | asked, on("0.5.21"))
    assert said == (
        "watermark is not taken: SGLang 0.5.21, which workers of this deployment run, does not "
        "know it. It came with 0.5.22."
    )
    for release in ("0.5.22", "0.5.23", ""):
        assert check("chat", chat | asked, on(release))["watermark"] == {"enabled": True}
    assert "watermark" in message("chat", chat | {"watermark": "yes"}, on("0.5.22"))
    thinking = chat | {"thinking": {"type": "enabled"}}
    assert check("chat", thinking, on("0.5.22")) == chat
    assert check("chat", thinking, on("0.5.23")) == thinking
    size = chat | {"mm_processor_kwargs": {"max_slice_nums": 1}}
    assert "media" in message("chat", size, on("0.5.23"))
    assert check("chat", size, on("0.5.23", frozenset({"media"}))) == size


TOOL = {"type": "function", "function": {"name": "f", "strict": None}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": "yes"}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:,", "detail": "default"}}
VIDEO = {"type": "video_url", "video_url": {"url": "data:,", "fps": 0}}


@pytest.mark.parametrize(
    ("fields", "wrong", "refuse"),
    [
        ({"tools": [TOOL]}, "strict", before("0.5.23")),
        ({"messages": [{"role": "root", "content": "a"}]}, "'role' must be", before("0.5.23")),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, "detail", before("0.5.23")),
        ({"messages": [{"role": "user", "content": [VIDEO]}]}, "fps", from_release("0.5.23")),
        ({"reasoning_effort": "ultra"}, "reasoning_effort", before("0.5.23")),
        ({"reasoning": {"effort": "ultra"}}, "effort must be", before("0.5.23")),
        ({"response_format": SCHEMA}, "strict", from_release("0.5.20")),
    ],
)
def test_parts_of_fields_are_checked_as_the_release_has_them(
    fields: dict[str, Any], wrong: str, refuse: tuple[str, ...]
) -> None:
    body = BASES["chat"] | fields
    for release in ("", *RELEASES):
        if (release or RELEASES[-1]) in refuse:
            assert wrong in message("chat", body, on(release, EVERYTHING))
        else:
            assert check("chat", body, on(release, EVERYTHING)) == body


def test_so_it_is_with_sampling_parameters() -> None:
    def body(**params: Any) -> dict[str, Any]:
        return {"text": "a", "sampling_params": params}

    asked = body(watermark={"key": "k"})
    assert "came with 0.5.22" in message("generate", asked, on("0.5.21"))
    assert message("generate", asked, on("0.5.21")).startswith("sampling_params.watermark is not")
    assert check("generate", asked, on("0.5.22")) == asked
    assert "must be an object" in message("generate", body(watermark=3), on("0.5.22"))
    assert "beam_width" in message("generate", body(beam_width=1), on("0.5.17"))
    unset = body(beam_width=None, watermark=None, top_k=3)
    assert check("generate", unset, on("0.5.17")) == body(top_k=3)


def test_a_batch_of_generate_may_have_one_for_each_prompt() -> None:
    marks = [{"key": "k"}, None]
    body: dict[str, Any] = {"text": ["a", "b"], "watermark": marks}
    raw = json.dumps(body).encode()
    job = parse("/generate", raw, release="0.5.22")
    assert [each.body["watermark"] for each in job.sub_requests] == marks
    assert "2 values for 3 prompts" in message(
        "generate", {**body, "text": ["a"] * 3}, on("0.5.22")
    )
    assert "only one prompt" in message("generate", {**body, "text": "a"}, on("0.5.22"))
    assert "must be an object" in message("generate", {**body, "watermark": [3, 4]}, on("0.5.22"))
    salted = {"text": ["a", "b"], "cache_salt": ["x", "y"]}
    job = parse("/generate", json.dumps(salted).encode(), release="0.5.22")
    assert [each.body["cache_salt"] for each in job.sub_requests] == ["x", "y"]


def test_the_oldest_worker_says_which_release_it_is() -> None:
    prefill = {"name": "p", "role": "prefill", "url": "http://127.0.0.1:1", "bootstrap_port": 1}
    decode = {"name": "d", "role": "decode", "url": "http://127.0.0.1:2"}
    known = KnownWorkers(RouterConfig.model_validate({"workers": [prefill, decode]}))
    assert known.release() == ""
    for release, stands_for in (("0.5.23", "0.5.23"), ("0.5.21", "0.5.21"), ("", "0.5.23")):
        known.workers[1].take_hello(Hello(sglang=release))
        known.workers[0].take_hello(Hello(sglang="0.5.23"))
        assert known.release() == stands_for


@pytest.mark.parametrize(("release", "status"), [("0.5.21", 400), ("0.5.22", 200)])
async def test_the_router_asks_its_workers(release: str, status: int) -> None:
    path = "/v1/completions"
    arguments = {role: ["--sglang", release] for role in ("prefill", "decode")}
    async with Cluster(role_args=arguments) as cluster:
        body = bodies(2)[path] | {"watermark": {"enabled": True}}
        got, said = await post(cluster, path, body)
        assert (got, "came with 0.5.22" in str(said)) == (status, status == 400)
