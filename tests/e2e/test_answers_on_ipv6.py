"""A whole deployment on `::1`, as clients meet it: the `openai` client, curl, a web page."""

import asyncio
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.e2e import browser, calls
from tests.e2e.deployments import deployed
from tests.ports import free_port
from toolkit.contract.addresses import http_url
from toolkit.launch import readiness
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.touched("network")]

PAGE_PORT, OTHER_PORT = free_port(), free_port()
PAGE, OTHER = (http_url("127.0.0.1", port) for port in (PAGE_PORT, OTHER_PORT))
SMALL = {"kv_tokens": 8192, "max_running": 8, "args": {"log-requests": True}}
TEXT = {"prompt": "def add(a, b):", "max_tokens": 8, "temperature": 0.0}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    document = {
        "name": "six",
        "hosts": {"here": {"address": "::1"}},
        "prefill": SMALL,
        "decode": {"replicas": 2, **SMALL},
        "router": {"host": "::1", "cors": [PAGE]},
    }
    with deployed(document, tmp_path_factory.mktemp("six")) as running:
        yield running


@pytest.fixture(scope="module")
def model(up: Running) -> str:
    _, body = readiness.get(up.router_url + "/v1/models")
    return str(json.loads(body)["data"][0]["id"])


def test_nothing_of_it_needs_ipv4(up: Running) -> None:
    """Its own ports are on ::1; what libraries open beside them is told in the limits."""
    assert up.router_url.startswith("http://[::1]:")
    status, body = readiness.get(up.router_url + "/workers")
    state = json.loads(body)
    assert status == 200 and state["admin"].startswith("http://[::1]:")
    assert all(row["url"].startswith("http://[::1]:") for row in state["workers"])
    at = {int(row["url"].rpartition(":")[2]) for row in state["workers"]}
    at |= {int(url.rpartition(":")[2]) for url in (up.router_url, state["admin"])}
    at |= {worker.bootstrap_port for worker in up.plan.workers if worker.bootstrap_port}
    bound = {
        (each.laddr.ip, each.laddr.port)
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr.port in at
    }
    assert bound == {("::1", port) for port in at}


async def _moved(up: Running, body: dict[str, Any]) -> tuple[calls.Answer, dict[str, Any]]:
    """A stream that is ordered to another decode worker after some tokens, and what came of it."""
    orders: list[asyncio.Task[dict[str, Any]]] = []
    async with calls.session() as http:

        async def order() -> dict[str, Any]:
            url = up.admin_url + "/admin/migrate"
            async with http.post(url, json={"rid": body["rid"]}) as answer:
                return await answer.json()

        def told(count: int) -> None:
            if count > 20 and not orders:
                orders.append(asyncio.ensure_future(order()))

        went = await calls.generate(http, up.router_url, body, told)
        return went, await orders[0]


def test_kv_goes_over_it_and_a_stream_moves(up: Running) -> None:
    body = calls.greedy(calls.prompt("six", 300), 400, stream=True)

    async def still() -> calls.Answer:
        async with calls.session() as http:
            return await calls.generate(http, up.router_url, body)

    stayed = calls.run(still())
    assert stayed.error == "" and len(stayed.ids) == 400
    for kind in ("replay", "direct"):
        calls.run(calls.switch(up.router_url, moves=kind))
        went, told = calls.run(_moved(up, body | {"rid": f"six-{kind}"}))
        assert (went.error, went.ids) == ("", stayed.ids), kind
        # How many direct moves of so short steps get over in time is the matter of other tests.
        outcomes = {"replay": told["moved"], "direct": told["moved"] + told["kept"]}
        assert outcomes[kind] == 1, told


def test_the_openai_client(up: Running, model: str) -> None:
    made = {"base_url": up.router_url + "/v1", "api_key": "none", "max_retries": 0, "timeout": 120}
    with openai.OpenAI(**made) as client:
        answer = client.completions.create(
            model=model, **TEXT, extra_headers={"X-Request-Id": "from-openai"}
        )
        assert answer._request_id == "from-openai" and answer.choices[0].text
        streamed = client.completions.with_raw_response.create(model=model, **TEXT, stream=True)
        assert re.fullmatch(r"req_\w{32}", streamed.headers["x-request-id"])
        assert (
            "".join(chunk.choices[0].text for chunk in streamed.parse()) == answer.choices[0].text
        )
        with pytest.raises(openai.NotFoundError) as missing:
            client.images.generate(model=model, prompt="a cat")
        assert isinstance(missing.value.body, dict) and missing.value.body["code"] == 404
        with pytest.raises(openai.BadRequestError) as bad:
            client.completions.create(model=model, prompt="x", max_tokens=-1)
        assert bad.value.request_id


def test_the_name_of_a_request_is_in_the_workers_logs_and_found_at_the_router(
    up: Running, model: str
) -> None:
    body = json.dumps({"model": model, **TEXT})
    curl(up.router_url + "/v1/completions", "-H", "X-Request-Id: look-for-me", "-d", body)
    _, found = readiness.get(up.router_url + "/workers")
    _, found = readiness.get(json.loads(found)["admin"] + "/requests/look-for-me")
    (known,) = json.loads(found)["requests"]
    assert known["state"] == "done" and len(known["workers"]) == 2
    for worker in known["workers"]:
        log = (up.run_dir / f"{worker}.log").read_text()
        (line,) = [x for x in log.splitlines() if "look-for-me" in x and "Receive: obj=" in x]
        assert "headers={'x-request-id': 'look-for-me'}" in line
        assert "rid='look-for-me'" not in line


def curl(url: str, *options: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and body."""
    told = subprocess.run(
        ["curl", "-sS", "-g", "-i", "--max-time", "100", "-H", "Content-Type: application/json",
         *options, url],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    head, _, body = told.partition("\n\n")
    first, *lines = head.splitlines()
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    return int(first.split()[1]), headers, body


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_curl(up: Running, model: str) -> None:
    url = up.router_url
    body = json.dumps({"model": model, **TEXT})
    status, headers, text = curl(url + "/v1/completions", "-d", body)
    assert status == 200 and json.loads(text)["choices"] and headers["x-request-id"]
    status, headers, text = curl(url + "/v1/completions/", "-d", body)
    assert (status, headers["location"]) == (307, "/v1/completions")
    status, headers, text = curl(url + "/v1/completions/", "-d", body, "-L")
    assert status == 307 and '"choices"' in text  # -i shows both answers
    status, headers, text = curl(url + "/v1/completions")
    assert (status, headers["allow"], json.loads(text)["code"]) == (405, "OPTIONS, POST", 405)
    status, headers, text = curl(url + "/nothing")
    assert (status, json.loads(text)["error"]["code"]) == (404, 404)
    status, headers, text = curl(url + "/v1/models", "-I")
    assert (status, text) == (200, "")
    status, headers, text = curl(url + "/v1/completions", "-X", "OPTIONS")
    assert (status, headers["allow"]) == (204, "OPTIONS, POST")


# What a page does with `fetch`: a preflight (it has a key and JSON), a stream, an error.
FETCH = """(async () => {
  const url = %s, body = %s;
  const asked = {method: 'POST', body: JSON.stringify(body), headers: {
    'Authorization': 'Bearer any', 'Content-Type': 'application/json', 'X-Request-Id': 'a-page'}};
  try {
    const good = await fetch(url + '/v1/completions', asked);
    const text = await good.text();
    const bad = await fetch(url + '/v1/nothing');
    return {status: good.status, id: good.headers.get('x-request-id'), text,
            missing: bad.status, error: await bad.json()};
  } catch (error) { return {failed: String(error)}; }
})()"""


@contextmanager
def pages(port: int) -> Iterator[None]:
    """An origin: somebody else's empty web page."""

    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = b"<!doctype html><title>page</title>"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Empty)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.full
def test_a_page_of_the_named_origin_may_and_another_may_not(
    up: Running, model: str, tmp_path: Path
) -> None:
    program = browser.find()
    if program is None:
        pytest.skip(f"no browser here: apt-get install {browser.PACKAGE}, or set TOOLKIT_BROWSER")
    body = {"model": model, "stream": True, **TEXT}
    script = FETCH % (json.dumps(up.router_url), json.dumps(body))
    with pages(PAGE_PORT), pages(OTHER_PORT), browser.browser(program, tmp_path) as page:
        page.go(PAGE)
        told = page.evaluate(script, wait=True)
        assert (told.get("status"), told.get("id")) == (200, "a-page"), told
        assert told["text"].rstrip().endswith("data: [DONE]") and '"choices"' in told["text"]
        assert (told["missing"], told["error"]["code"]) == (404, 404)
        page.go(OTHER)
        assert "Failed to fetch" in page.evaluate(script, wait=True)["failed"]
