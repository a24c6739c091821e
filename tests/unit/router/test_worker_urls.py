"""Workers' URLs in a router's configuration. (Their reader: `contract/test_addresses.py`.)"""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from toolkit.settings.router.config import ConfigError, RouterConfig
from toolkit.settings.router.load import load_config


def _config(url: str, **more: Any) -> dict[str, Any]:
    return {"workers": [{"name": "w", "role": "plain", "url": url}], **more}


def test_a_prefix_is_kept_and_addresses_are_read() -> None:
    (worker,) = RouterConfig.model_validate(_config("http://[::1]:80/a/b/")).workers
    assert (worker.host, worker.port, worker.prefix) == ("::1", 80, "/a/b")
    assert worker.url == "http://[::1]:80/a/b"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://u:secret@h:1", "worker_api_key_env"),
        ("http://h:1?a=b", "query"),
        ("http://h:1#a", "fragment"),
        ("http://h:0", "port from 1 to 65535"),
        ("http://h:65536", "no URL"),
        ("http://h", "port"),
        ("https://h:1", "plain HTTP"),
        ("http://::1:80", "no URL"),
    ],
)
def test_what_cannot_be_honoured_is_refused_when_the_file_is_read(
    tmp_path: Path, url: str, why: str
) -> None:
    path = tmp_path / "router.json"
    path.write_text(json.dumps(_config(url)))
    with pytest.raises(ConfigError, match=why) as caught:
        load_config(path)
    assert "workers.0.url" in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize("port", [0, 65536, -1])
def test_a_bootstrap_port_is_one(port: int) -> None:
    worker = {"name": "p", "role": "prefill", "url": "http://h:1", "bootstrap_port": port}
    decode = {"name": "d", "role": "decode", "url": "http://h:2"}
    with pytest.raises(ValidationError, match="bootstrap_port"):
        RouterConfig.model_validate({"workers": [worker, decode]})


@pytest.mark.parametrize("field", ["host", "bootstrap_host"])
def test_a_host_is_alone(field: str) -> None:
    own = {"host": "[::1]:80"} if field == "host" else {}
    config = _config("http://h:1", **own)
    if field != "host":
        config["workers"][0][field] = "http://h"
    with pytest.raises(ValidationError, match="name or an address alone"):
        RouterConfig.model_validate(config)
