"""What the kernel alone takes to relay small chunks: `python -m tests.standin.floor [--shared]`.

One process writes `--streams` chunks a step over loopback TCP, one relays them with nothing but
epoll, recv and send, one reads them. Prints a JSON object with the relay's CPU time a chunk in us.
With `--shared` all streams arrive on one connection: what is left is one send a chunk, which no
router can save, since every client has a connection of its own.
"""

import argparse
import json
import os
import resource
import select
import socket
import time

CHUNK = b"x" * 230  # the size of a chat chunk of one token with its chunked framing


def connections(count: int) -> list[tuple[socket.socket, socket.socket]]:
    """Pairs of connected sockets, as (dialled, accepted)."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(count)
        pairs = []
        for _ in range(count):
            near = socket.create_connection(listener.getsockname())
            far, _ = listener.accept()
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pairs.append((near, far))
        return pairs


def poll(sockets: list[socket.socket], total: int, take: object) -> None:
    """Call `take(index, data)` for what arrives until `total` bytes have."""
    epoll = select.epoll()
    index = {end.fileno(): i for i, end in enumerate(sockets)}
    for end in sockets:
        epoll.register(end.fileno(), select.EPOLLIN)
    while total > 0:
        for number, _ in epoll.poll():
            data = sockets[index[number]].recv(16384)
            total -= len(data)
            take(index[number], data)  # type: ignore[operator]


def relay(sources: list[socket.socket], targets: list[socket.socket], total: int) -> float:
    """CPU seconds that it took to bring `total` bytes on."""
    held, turn = b"", 0

    def straight(index: int, data: bytes) -> None:
        targets[index].send(data)

    def spread(_: int, data: bytes) -> None:
        nonlocal held, turn
        data = held + data
        whole = len(data) - len(data) % len(CHUNK)
        for start in range(0, whole, len(CHUNK)):
            targets[turn].send(data[start : start + len(CHUNK)])
            turn = (turn + 1) % len(targets)
        held = data[whole:]

    before = resource.getrusage(resource.RUSAGE_SELF)
    poll(sources, total, straight if len(sources) > 1 else spread)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=10)
    parser.add_argument("--shared", action="store_true")
    args = parser.parse_args()
    sources = connections(1 if args.shared else args.streams)
    targets = connections(args.streams)
    chunks = args.streams * args.steps
    total = chunks * len(CHUNK)
    children = []
    for role in (
        lambda: poll([far for _, far in targets], total, lambda *_: None),
        lambda: print(
            json.dumps(
                {
                    "chunk_us": relay(
                        [far for _, far in sources], [near for near, _ in targets], total
                    )
                    / chunks
                    * 1e6
                }
            ),
            flush=True,
        ),
    ):
        child = os.fork()
        if child == 0:
            role()  # type: ignore[no-untyped-call]
            os._exit(0)
        children.append(child)
    for _ in range(args.steps):
        begin = time.perf_counter()
        if args.shared:
            sources[0][0].sendall(CHUNK * args.streams)
        else:
            for near, _ in sources:
                near.send(CHUNK)
        time.sleep(max(0.0, args.step_ms / 1e3 - (time.perf_counter() - begin)))
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
