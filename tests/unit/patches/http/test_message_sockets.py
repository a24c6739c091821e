"""Strangers at the ports of SGLang's message sockets: its own functions, real sockets."""

from typing import Any

import pytest

from tests.sglang_python import found_by

CODE = """
import json, socket, time
from functools import partial
import zmq
from sglang.srt.utils import network
from patches.http import message_sockets

plain = network.config_socket
hooked = partial(message_sockets._refuse_strangers, plain)
MESSAGES = 10

def taken(config, message):
    # By the one that the messages are for, while a stranger is connected.
    network.config_socket = config
    one, other = zmq.Context(), zmq.Context()
    port, sends = network.get_zmq_socket_on_host(one, zmq.PUSH)
    network.config_socket = plain  # the other side has no patch: a detokenizer
    receives = network.get_zmq_socket(other, zmq.PULL, f"tcp://127.0.0.1:{port}", False)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(message)
        time.sleep(0.5)
        for number in range(MESSAGES):
            sends.send(b"%d" % number)
        got = 0
        while receives.poll(500):
            receives.recv()
            got += 1
    one.destroy(0), other.destroy(0)
    return got

def heard(config):
    # What a socket that receives makes of it.
    network.config_socket = config
    context = zmq.Context()
    port, receives = network.get_zmq_socket_on_host(context, zmq.PULL)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"\\x01\\x00\\x06\\x00hello")  # ZMTP 1.0: no name, then a message
        found = bool(receives.poll(500))
    context.destroy(0)
    return found

HTTP = b"GET /health HTTP/1.1\\r\\nHost: somebody\\r\\nUser-Agent: " + b"x" * 99 + b"\\r\\n\\r\\n"
print(json.dumps({
    "http": taken(hooked, HTTP),
    "http, as it was": taken(plain, HTTP),
    "old protocol": taken(hooked, b"\\x01\\x00"),
    "nothing said": taken(hooked, b""),
    "heard": heard(hooked),
    "heard, as it was": heard(plain),
}))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return found_by(CODE)


def test_whoever_does_not_speak_the_protocol_takes_nothing(found: dict[str, Any]) -> None:
    assert [found[who] for who in ("http", "old protocol", "nothing said")] == [10, 10, 10]
    assert not found["heard"]


def test_without_the_patch_an_http_client_takes_every_second_message(
    found: dict[str, Any],
) -> None:
    """If this fails, ZeroMQ has mended it, and the patch can go."""
    assert found["http, as it was"] == 5
    assert found["heard, as it was"]
