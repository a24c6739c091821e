"""Nobody but ZeroMQ gets messages from SGLang's sockets.

With DP attention SGLang's processes talk over TCP ports, and so do prefill and decode workers. To
a peer that does not speak the protocol ZeroMQ talks as it did in 2010, when peers did not say what
they are: a port scan, a health check or an HTTP client that was meant for the port's former owner
then counts as one of two ranks' ends, and takes every second request that is for that rank. Their
clients wait for ever, as nobody has an error. A socket with a ZAP domain refuses such peers; with
nobody there who handles the domain, all others are let in as before (libzmq,
`zmtp_engine_t::handshake_v1_0_unversioned` and `null_mechanism_t`).

The detokenizer's process loads no plugins: its own port is as it was.
"""

from typing import Any

from patches.base import EVERY, Hook, Patch

DOMAIN = b"toolkit"


def _refuse_strangers(original: Any, socket: Any, socket_type: Any) -> None:
    import zmq

    original(socket, socket_type)
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)


PATCH = Patch(
    name="message_sockets",
    why="whoever connects to a rank's port by mistake takes every second one of its requests",
    processes=EVERY,
    hooks=(
        Hook(
            "sglang.srt.utils.network.config_socket",
            _refuse_strangers,
            ("socket", "socket_type"),
        ),
    ),
    requires=(
        "sglang.srt.utils.network.get_zmq_socket",
        "sglang.srt.utils.network.get_zmq_socket_on_host",
    ),
)
