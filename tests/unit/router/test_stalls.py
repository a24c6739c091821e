"""Who takes nothing of what waits for it for too long; and nobody else."""

import asyncio
import socket

from toolkit.router import stalls
from toolkit.router.stalls import Stalls


def test_only_who_takes_nothing_for_too_long_is_dropped() -> None:
    known = Stalls(10.0)
    one = object()
    assert not known.look(one, 100, 5, 0.0)
    assert not known.look(one, 100, 5, 9.9)
    assert known.look(one, 900, 5, 10.0), "more to be written is nothing taken"
    assert not known.look(one, 100, 6, 11.0), "a byte is"
    assert not known.look(one, 100, 6, 20.9)
    assert known.look(one, 100, 6, 21.0)


def test_who_has_nothing_to_take_may_take_nothing_for_ever() -> None:
    known = Stalls(10.0)
    one = object()
    assert not known.look(one, 100, 5, 0.0)
    assert not known.look(one, 0, 0, 5.0)
    assert not known.look(one, 100, 5, 100.0), "from now on"
    assert not known.look(one, 100, 5, 109.0)
    known.forget(one)
    assert len(known) == 0


async def test_what_a_client_took_is_what_its_system_acknowledges() -> None:
    """Our own buffer is not it: it is as full as before after a client has read."""
    loop = asyncio.get_running_loop()
    ours = loop.create_future()

    class Writer(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            ours.set_result(transport)

    server = await loop.create_server(Writer, "127.0.0.1", 0)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, server.sockets[0].getsockname())
        transport = await ours
        assert stalls.unsent(transport) == 0
        transport.write(b"x" * 16 * 2**20)
        while True:  # until the kernel takes no more
            before, left = stalls.taken(transport), stalls.unsent(transport)
            await asyncio.sleep(0.3)
            if (stalls.taken(transport), stalls.unsent(transport)) == (before, left):
                break
        assert before > 0 and left > 0
        for _ in range(20):
            await loop.sock_recv(client, 4096)
            await asyncio.sleep(0.02)
        assert stalls.taken(transport) > before
        transport.abort()
    server.close()
