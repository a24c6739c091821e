"""A real router process over stand-ins: headers, request ids, shapes of errors, methods, pages."""

import asyncio
import json
import re
from typing import Any

import aiohttp
import openai
import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, expected, idle, post, prompt_of, text_of
from tests.unit.router.raw import Raw
from toolkit.router.request import PATHS

pytestmark = pytest.mark.touched("router")

PATH = "/v1/completions"
MADE = re.compile(r"req_[0-9a-f]{32}")
ORIGIN = "https://app.example"


async def ask(
    cluster: Cluster, method: str, path: str, admin: bool = False, **options: Any
) -> tuple[int, dict[str, str], bytes]:
    url = (cluster.admin if admin else cluster.url) + path
    options.setdefault("allow_redirects", False)
    async with cluster.session.request(method, url, **options) as answer:
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return answer.status, headers, await answer.read()


# What a worker's answer tells the client.


@pytest.mark.parametrize("status", ["429", "503"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("said", ["7", "Wed, 21 Oct 2037 07:28:00 GMT"])
async def test_retry_after_goes_on_as_the_worker_said_it(
    status: str, stream: bool, said: str
) -> None:
    async with Cluster(prefills=0, decodes=0, plains=1) as cluster:
        await cluster.make("plain-0", f"{status} Retry-After: {said}")
        body = bodies(2, stream=stream)[PATH]
        got, headers, _ = await ask(cluster, "POST", PATH, json=body)
        assert (got, headers["retry-after"]) == (int(status), said)
        await cluster.until(idle)


@pytest.mark.parametrize("said", ["", "Retry-After: soon", "Retry-After: -4"])
async def test_a_worker_that_says_no_time_has_the_router_s_own_estimate(said: str) -> None:
    async with Cluster(prefills=0, decodes=0, plains=1) as cluster:
        await cluster.make("plain-0", f"503 {said}".strip())
        _, headers, _ = await ask(cluster, "POST", PATH, json=bodies(2)[PATH])
        assert headers["retry-after"] == "1"


@pytest.mark.parametrize("status", [429, 503])
async def test_a_worker_that_is_full_says_so_in_its_stream_and_the_client_hears_when_to_come(
    status: int,
) -> None:
    async with Cluster(decodes=1, role_args={"prefill": ["--first-token"]}) as cluster:
        body = bodies(2, refuse_first=status)[PATH]
        got, headers, _ = await ask(cluster, "POST", PATH, json=body)
        assert (got, headers["retry-after"]) == (status, "1")
        await cluster.until(idle)


async def test_of_workers_that_all_refuse_the_first_to_have_room_counts() -> None:
    async with Cluster(prefills=0, decodes=0, plains=2) as cluster:
        await cluster.make("plain-0", "503 Retry-After: 9")
        await cluster.make("plain-1", "429 Retry-After: 7")
        _, headers, _ = await ask(cluster, "POST", PATH, json=bodies(2)[PATH])
        assert headers["retry-after"] == "7"


async def test_prefill_and_decode_are_both_needed_so_the_later_counts() -> None:
    async with Cluster(decodes=1) as cluster:
        await cluster.make("decode-0", "503 Retry-After: 8")
        _, headers, _ = await ask(cluster, "POST", PATH, json=bodies(2)[PATH])
        assert headers["retry-after"] == "8"


async def test_headers_that_pass_are_listed_in_both_directions() -> None:
    numbers: dict[str, Any] = {"prefills": 0, "decodes": 0, "plains": 1}
    async with Cluster(worker_args=["--record"], **numbers) as cluster:
        sent = {
            "traceparent": "00-1", "X-SMG-Routing-Key": "k", "Authorization": "Bearer mine",
            "Cookie": "c=1", "X-Data-Parallel-Rank": "3", "X-Request-Id": "mine-1",
        }  # fmt: skip
        assert (await post(cluster, PATH, bodies(1)[PATH], headers=sent))[0] == 200
        (got,) = (await cluster.stats("plain-0"))["heads"]
        assert (got["traceparent"], got["x-smg-routing-key"]) == ("00-1", "k")
        assert got["x-request-id"] == "mine-1"
        assert got["authorization"] == "Bearer standin"
        assert not {"cookie", "x-data-parallel-rank"} & got.keys()
        await cluster.make("plain-0", "429 Set-Cookie: a=b")
        _, headers, _ = await ask(cluster, "POST", PATH, json=bodies(2)[PATH])
        assert "set-cookie" not in headers


# Request ids.


async def _answers(cluster: Cluster, name: str) -> dict[str, dict[str, str]]:
    """Headers of answers of every kind to requests that say `name` (nothing, where it is empty)."""
    own = {"X-Request-Id": name} if name else {}
    found = {}

    async def keep(what: str, status: int, method: str, path: str, **options: Any) -> None:
        headers = own | options.pop("headers", {})
        got, answered, _ = await ask(cluster, method, path, headers=headers, **options)
        assert got == status, what
        found[what] = answered

    whole = bodies(2, stream=False)[PATH]
    await keep("whole", 200, "POST", PATH, json=whole)
    await keep("stream", 200, "POST", PATH, json=bodies(2)[PATH])
    await keep("merged", 200, "POST", PATH, json=whole | {"n": 2})
    await keep("health", 200, "GET", "/health")
    await keep("models", 200, "GET", "/v1/models")
    await keep("head", 200, "HEAD", "/health")
    await keep("workers", 200, "GET", "/workers", admin=True)
    await keep("policy", 200, "POST", "/admin/policy", json={}, admin=True)
    await keep("no admin", 403, "POST", "/admin/policy", json={})
    await keep("bad", 400, "POST", PATH, json={"prompt": "x", "max_tokens": -1})
    await keep("unknown", 404, "GET", "/v1/nothing")
    await keep("method", 405, "GET", PATH)
    await keep("slash", 307, "POST", PATH + "/", json=whole)
    await keep("options", 204, "OPTIONS", PATH)
    await keep("large", 413, "POST", PATH, data=b"x" * (2 << 20))
    await keep("coding", 415, "POST", PATH, json=whole, headers={"Content-Encoding": "br"})
    await keep("expect", 417, "GET", "/health", headers={"Expect": "tea"})
    await keep("pages", 403, "GET", "/workers", headers={"Origin": ORIGIN}, admin=True)
    return found


async def test_every_answer_has_the_client_s_request_id() -> None:
    async with Cluster(config={"max_body_mib": 1}) as cluster:
        found = await _answers(cluster, "my.request:7_A-z~+=")
        wrong = {what: got for what, got in found.items() if "my.request:7_A-z~+=" not in
                 got.get("x-request-id", "")}  # fmt: skip
        assert not wrong


async def test_every_answer_has_one_that_is_made_where_the_client_has_none() -> None:
    async with Cluster(config={"max_body_mib": 1}) as cluster:
        made = [got["x-request-id"] for got in (await _answers(cluster, "")).values()]
        assert all(MADE.fullmatch(name) for name in made), made
        assert len(set(made)) == len(made)


@pytest.mark.parametrize("said", ["x" * 129, "a b", "a/b", 'a"b', "é", "a;b", "<x>"])
async def test_a_word_that_is_not_sane_is_replaced(said: str) -> None:
    async with Cluster(decodes=1) as cluster:
        _, headers, _ = await ask(cluster, "GET", "/health", headers={"X-Request-Id": said})
        assert MADE.fullmatch(headers["x-request-id"])


async def test_what_is_no_request_has_an_id_and_the_shape_too() -> None:
    async with Cluster(decodes=1, config={"head_timeout_s": 0.2}) as cluster:
        for sent, status in ((b"NOT HTTP\r\n\r\n", 400), (b"GET / HT", 408)):
            async with Raw(cluster.port) as client:
                await client.send(sent)
                got, headers, body = await client.answer()
                error = json.loads(body)["error"]
                assert (got, error["code"]) == (status, status)
                assert MADE.fullmatch(headers["x-request-id"])


async def test_a_request_is_found_in_the_log_and_by_its_name() -> None:
    async with Cluster(decodes=2) as cluster:
        body = bodies(6, crash_after=2, crash_role="decode")[PATH]
        headers = {"X-Request-Id": "the-one"}
        await post(cluster, PATH, body, headers=headers)
        failed = [line for line in cluster.log.read_text().splitlines() if "attempt" in line]
        assert failed and all("request the-one" in line for line in failed)
        _, _, raw = await ask(cluster, "GET", "/requests/the-one", admin=True)
        (known,) = json.loads(raw)["requests"]
        assert (known["state"], known["status"], known["endpoint"]) == (
            "done", 200, "completions",
        )  # fmt: skip
        (part,) = known["shown"]
        assert part["attempts"] == 2 and len(part["failures"]) == 1
        assert part["first_token_s"] <= known["seconds"]
        assert {each["role"] for each in part["tries"]} == {"prefill", "decode"}
        assert set(known["workers"]) == {each["worker"] for each in part["tries"]}
        rids = {each["rid"] for each in part["tries"]}
        assert len(rids) == 2 and "the-one" not in rids
        _, _, raw = await ask(cluster, "GET", f"/requests/{known['rid']}", admin=True)
        assert json.loads(raw)["requests"] == [known]
        assert (await ask(cluster, "GET", "/requests/other", admin=True))[0] == 404
        assert (await ask(cluster, "GET", "/requests/the-one"))[0] == 403


async def test_a_request_in_flight_is_known_and_two_of_one_name_do_not_disturb_each_other() -> None:
    async with Cluster(worker_args=["--token-ms", "20"]) as cluster:
        headers = {"X-Request-Id": "twin"}
        body = bodies(40)[PATH]
        both = [asyncio.create_task(post(cluster, PATH, body, headers=headers)) for _ in "ab"]
        while True:
            _, _, raw = await ask(cluster, "GET", "/requests/twin", admin=True)
            found = json.loads(raw).get("requests", [])
            if [known["state"] for known in found] == ["running"] * 2:
                break
            await asyncio.sleep(0.01)
        both[0].cancel()
        status, raw = await both[1]
        assert (status, text_of(PATH, raw)) == (200, expected("hello", 40))
        await cluster.until(idle)
        _, _, raw = await ask(cluster, "GET", "/requests/twin", admin=True)
        states = sorted(known["state"] for known in json.loads(raw)["requests"])
        assert states == ["aborted", "done"]


async def test_a_client_sees_its_own_requests_only() -> None:
    config = {"api_key_env": "C_KEY", "admin_key_env": "A_KEY", "admin_port": 0}
    env = {"C_KEY": "key-of-bob", "A_KEY": "key-of-admin"}
    bob, admin = ({"Authorization": f"Bearer {env[name]}"} for name in ("C_KEY", "A_KEY"))
    with pytest.MonkeyPatch.context() as patch:

        async def state(cluster: Cluster) -> Any:
            return json.loads((await ask(cluster, "GET", "/workers", headers=admin))[2])

        patch.setattr(Cluster, "state", state)
        async with Cluster(decodes=1, config=config, env=env) as cluster:
            for key, name in ((bob, "of-bob"), (admin, "of-admin")):
                sent = key | {"X-Request-Id": name}
                assert (await post(cluster, PATH, bodies(1)[PATH], headers=sent))[0] == 200
            seen = {
                (who, name): (await ask(cluster, "GET", f"/requests/{name}", headers=key))[0]
                for who, key in (("bob", bob), ("admin", admin), ("nobody", {}))
                for name in ("of-bob", "of-admin")
            }
            assert seen == {
                ("bob", "of-bob"): 200, ("bob", "of-admin"): 404,
                ("admin", "of-bob"): 200, ("admin", "of-admin"): 200,
                ("nobody", "of-bob"): 401, ("nobody", "of-admin"): 401,
            }  # fmt: skip


# One shape for every error, methods, and slashes.


def _is_an_error(path: str, status: int, body: bytes) -> bool:
    """Whether it has the shape that errors of the path have."""
    told = json.loads(body)
    if path.startswith("/v1/messages"):
        return bool(told["type"] == "error" and {"type", "message"} == told["error"].keys())
    nested = path.startswith("/v1/responses") or not path.startswith("/v1/")
    error = told["error"] if nested else told
    assert nested or error.pop("object") == "error"
    return bool({"message", "type", "param", "code"} == error.keys() and error["code"] == status)


@pytest.mark.parametrize("keyed", [False, True], ids=["open", "keyed"])
async def test_unknown_paths_wrong_methods_and_slashes_have_the_shape_of_their_path(
    keyed: bool,
) -> None:
    config = {"api_key_env": "C_KEY"} if keyed else {}
    async with Cluster(decodes=1, config=config, env={"C_KEY": "key"}) as cluster:
        key = {"Authorization": "Bearer key"} if keyed else {}
        wrong = [("GET", path, 405) for path in PATHS]
        wrong += [("PUT", path, 405) for path in ("/v1/models", "/health", "/workers")]
        wrong += [("POST", path, 404) for path in ("/", "/v1", "/v1/foo", "/v1/messages/foo")]
        wrong += [("GET", "/v1/responses/x/y/z", 404), ("TRACE", "/health", 405)]
        for method, path, status in wrong:
            got, headers, body = await ask(cluster, method, path, headers=key)
            assert got == status, (method, path)
            assert headers["content-type"].startswith("application/json")
            assert _is_an_error(path, status, body), (method, path, body)
            if status == 405:
                allow = headers["allow"].split(", ")
                assert "OPTIONS" in allow and method not in allow
            if keyed and path != "/health":
                got, headers, body = await ask(cluster, method, path)
                assert got == 401 and _is_an_error(path, 401, body), (method, path, body)
                assert headers["www-authenticate"] == "Bearer"


async def test_a_slash_too_many_is_sent_on_and_followed_with_method_and_body() -> None:
    async with Cluster(decodes=1) as cluster:
        for path in (*PATHS, "/v1/models", "/health"):
            method = "POST" if path in PATHS else "GET"
            got, headers, body = await ask(cluster, method, path + "/?a=1")
            assert (got, headers["location"]) == (307, path + "?a=1"), path
            assert _is_an_error(path, 307, body), body
        got, _, raw = await ask(
            cluster, "POST", PATH + "/", json=bodies(3)[PATH], allow_redirects=True
        )
        assert (got, text_of(PATH, raw)) == (200, expected("hello", 3))
        assert (await ask(cluster, "GET", "//evil.example/"))[0] == 404
        large = b"x" * (1 << 20)
        assert (await ask(cluster, "POST", PATH + "/", data=large))[0] == 307


async def test_an_expectation_that_nobody_knows_is_refused_in_the_shape_of_the_path() -> None:
    async with Cluster(decodes=1) as cluster:
        for path in ("/health", "/v1/models", PATH, "/nothing"):
            method = "POST" if path == PATH else "GET"
            got, headers, body = await ask(cluster, method, path, headers={"Expect": "tea"})
            assert got == 417 and _is_an_error(path, 417, body), (path, body)
            assert headers["content-type"] == "application/json"


async def test_head_and_options_are_answered() -> None:
    async with Cluster(decodes=1) as cluster:
        for path in ("/health", "/readiness", "/v1/models", "/metrics"):
            status, headers, body = await ask(cluster, "HEAD", path)
            assert (status, body) == (200, b""), path
            status, headers, body = await ask(cluster, "OPTIONS", path)
            assert (status, headers["allow"], body) == (204, "GET, HEAD, OPTIONS", b""), path
        for path in PATHS:
            status, headers, body = await ask(cluster, "HEAD", path)
            assert (status, headers["allow"], body) == (405, "OPTIONS, POST", b""), path
            status, headers, _ = await ask(cluster, "OPTIONS", path)
            assert (status, headers["allow"]) == (204, "OPTIONS, POST"), path
        assert (await ask(cluster, "HEAD", "/nothing"))[0] == 404
        assert (await ask(cluster, "OPTIONS", "/nothing"))[0] == 404
        async with Raw(cluster.port) as client:
            await client.send(b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await client.answer())[0] == 204


async def test_a_page_of_html_in_between_is_told_as_an_error_object() -> None:
    async with Cluster(prefills=0, decodes=0, plains=1, config={"max_retries": 0}) as cluster:
        await cluster.make("plain-0", "html")
        got, _, body = await ask(cluster, "POST", PATH, json=bodies(2)[PATH])
        assert got == 502 and _is_an_error(PATH, 502, body), body


async def test_the_openai_client_reads_all_of_it() -> None:
    async with Cluster(decodes=1) as cluster:
        await cluster.make("decode-0", "503 Retry-After: 7")
        made = {"base_url": cluster.url + "/v1", "api_key": "k", "max_retries": 0}
        async with openai.AsyncOpenAI(**made) as client:
            for stream in (False, True):
                with pytest.raises(openai.InternalServerError) as caught:
                    await client.completions.create(
                        model="m", prompt="hello", max_tokens=2, stream=stream,
                        extra_headers={"X-Request-Id": "from-openai"},
                    )  # fmt: skip
                assert caught.value.response.headers["retry-after"] == "7"
                assert caught.value.request_id == "from-openai"
            with pytest.raises(openai.NotFoundError) as missing:
                await client.images.generate(model="m", prompt="a cat")
            error = missing.value.body
            assert isinstance(error, dict) and error["code"] == 404
            await cluster.make("decode-0", "well")
            answer = await client.completions.create(model="m", prompt="hello", max_tokens=2)
            assert MADE.fullmatch(answer._request_id or "")


# Web pages.


def _preflight(origin: str = ORIGIN) -> dict[str, str]:
    return {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    }


def _cors(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("access-control-")}


async def test_pages_get_nothing_by_default() -> None:
    async with Cluster(decodes=1) as cluster:
        status, headers, _ = await ask(cluster, "OPTIONS", PATH, headers=_preflight())
        assert status == 204 and not _cors(headers)
        sent = {"Origin": ORIGIN}
        status, headers, _ = await ask(cluster, "POST", PATH, json=bodies(1)[PATH], headers=sent)
        assert status == 200 and not _cors(headers) and "vary" not in headers


async def test_pages_of_named_origins_may_read_every_answer_and_ask_without_a_key() -> None:
    config = {"cors": [ORIGIN, "http://localhost:5173"], "api_key_env": "C_KEY"}
    async with Cluster(decodes=1, config=config, env={"C_KEY": "key"}) as cluster:
        for path in (PATH, "/v1/models", PATH + "/"):
            status, headers, body = await ask(cluster, "OPTIONS", path, headers=_preflight())
            assert (status, body) == (204, b"")
            assert headers["access-control-allow-origin"] == ORIGIN
            assert "POST" in headers["access-control-allow-methods"]
            wanted = _preflight()["Access-Control-Request-Headers"]
            assert headers["access-control-allow-headers"] == wanted
            assert headers["vary"].startswith("Origin")
        key = {"Authorization": "Bearer key"}
        asked = [
            ("POST", PATH, {"json": bodies(1)[PATH], "headers": key}, 200),
            ("POST", PATH, {"json": {}, "headers": key}, 400),
            ("POST", PATH, {"json": {}}, 401),
            ("GET", "/nothing", {"headers": key}, 404),
            ("GET", PATH, {"headers": key}, 405),
        ]
        for method, path, options, wanted_status in asked:
            sent: dict[str, Any] = {"Origin": ORIGIN} | options.pop("headers", {})  # type: ignore[attr-defined]
            status, headers, _ = await ask(cluster, method, path, headers=sent, **options)  # type: ignore[arg-type]
            assert status == wanted_status
            assert headers["access-control-allow-origin"] == ORIGIN
            assert "access-control-allow-credentials" not in headers
            exposed = headers["access-control-expose-headers"]
            assert {"x-request-id", "retry-after"} <= set(exposed.split(", "))
            assert headers["vary"] == "Origin"
        for origin in ("https://evil.example", ORIGIN + ".evil", "null"):
            status, headers, _ = await ask(cluster, "OPTIONS", PATH, headers=_preflight(origin))
            assert not _cors(headers) and headers["vary"].startswith("Origin")
            status, headers, _ = await ask(
                cluster, "GET", "/v1/models", headers=key | {"Origin": origin}
            )
            assert status == 200 and not _cors(headers) and headers["vary"] == "Origin"


async def test_every_origin_gets_no_credentials_and_no_admin() -> None:
    async with Cluster(decodes=1, config={"cors": ["*"]}) as cluster:
        sent = {"Origin": ORIGIN}
        _, headers, _ = await ask(cluster, "GET", "/v1/models", headers=sent)
        assert headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in headers
        _, headers, _ = await ask(cluster, "OPTIONS", "/admin/drain", headers=_preflight())
        assert not _cors(headers)
        for method, path in (("OPTIONS", PATH), ("GET", "/workers"), ("POST", "/admin/drain")):
            status, headers, _ = await ask(cluster, method, path, headers=_preflight(), admin=True)
            assert status == 403 and not _cors(headers), (method, path)


# Where workers are.


@pytest.mark.parametrize("prefix", ["/team/workers", ""])
@pytest.mark.parametrize("host", ["::1", "127.0.0.1"])
async def test_workers_behind_a_path_and_on_ipv6_serve_everything(host: str, prefix: str) -> None:
    """Events, health, generation, abort, models and moves all go there."""
    args = ["--resume", "--moves", "--token-ms", "5"]
    options: dict[str, Any] = {"host": host, "prefix": prefix, "worker_args": args}
    config: dict[str, Any] = {"decode_policy": "round_robin"}
    async with Cluster(config=config, **options) as cluster:
        for path, body in bodies(4).items():
            status, raw = await post(cluster, path, body)
            assert (status, text_of(path, raw)) == (200, expected(prompt_of(path), 4))
        assert (await ask(cluster, "GET", "/v1/models"))[0] == 200
        rid: dict[str, Any] = {"rid": "long"}
        streaming = asyncio.create_task(post(cluster, PATH, bodies(80, **rid)[PATH]))
        await cluster.until(lambda s: sum(w["inflight"] for w in s["workers"]) > 0)
        await asyncio.sleep(0.1)
        order = {"rid": "long"}
        status, raw = await post(cluster, "/admin/migrate", order, admin=True)
        assert status == 200, raw
        status, raw = await streaming
        assert (status, text_of(PATH, raw)) == (200, expected("hello", 80))
        state = await cluster.state()
        assert [each["outcome"] for each in state["moves"]["outcomes"]] == ["moved"]
        assert {w["url"] for w in state["workers"]} == {w.url for w in cluster.workers}
        assert all(w.url.endswith(f":{w.port}{prefix}") for w in cluster.workers)
        leaving = asyncio.create_task(post(cluster, PATH, bodies(2000)[PATH]))
        await cluster.until(lambda s: any(w["inflight"] for w in s["workers"]))
        leaving.cancel()
        await cluster.until_stats(lambda told: any(w["aborted"] for w in told.values()))
        await cluster.until(idle)


async def test_a_worker_that_answers_404_for_ever_is_named_with_its_reason() -> None:
    async with Cluster(decodes=1, prefix="/right") as cluster:
        prefill, decode = (worker.config() for worker in cluster.workers)
        decode["url"] = decode["url"].replace("/right", "/wrong")
        waiting = Cluster(prefills=0, decodes=0, config={"workers": [prefill, decode]})
        wrong = "decode-0 (/health answers 404)"
        beginning = asyncio.create_task(waiting.__aenter__())
        try:
            while True:
                await asyncio.sleep(0.05)
                assert not beginning.done()
                try:
                    _, _, told = await ask(waiting, "GET", "/readiness")
                except (AttributeError, aiohttp.ClientError):
                    continue  # it is starting
                if wrong in told.decode():
                    break
            assert f"decode-0 at {decode['url']} is not up" in waiting.log.read_text()
        finally:
            beginning.cancel()
            await asyncio.wait({beginning})
            await waiting.__aexit__()
