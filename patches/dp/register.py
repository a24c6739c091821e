"""The DP controller tells decode workers which rank of a prefill worker has a request.

A decode worker must fetch a prompt's KV from the DP rank that prefilled it. Under any method but
`follow_bootstrap_room` it asks the prefill's bootstrap server, and SGLang 0.5.21 has the rank
itself register there (`disaggregation/common/conn.py`, `CommonKVSender`): by a blocking POST on the
scheduler's thread, one for each TP rank of each request, and under the wrong number where there is
no DP attention (`attn_dp_rank` is 0 on every rank then, so that decode asks rank 0 for all and
requests of other ranks hang). The controller knows the rank first. It writes it into the request,
which keeps the schedulers from registering, and registers from a thread of its own.
"""

import json
import time
from http.client import HTTPConnection, HTTPException
from queue import SimpleQueue
from threading import Thread

from patches.sglang_types import Tokenized
from toolkit.limited_logs import limited_logger

log = limited_logger("toolkit.dp")

PATH = "/register_dp_rank"
TIMEOUT_S = 5.0
PAUSES_S = (0.0, 0.05, 0.5)
"""Before each attempt. Until one has worked the decode worker asks again."""


class Register:
    """Sends (bootstrap server, room, rank) in the order in which it is told, over one connection.

    `tell` never blocks. What could not be sent in three attempts is logged: its decode gives up
    after SGLang's own time-out, as when a rank's own registration fails.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[str, int, int]] = SimpleQueue()
        self._connection: HTTPConnection | None = None
        self._address = ""
        Thread(target=self._run, name="toolkit-dp-register", daemon=True).start()

    def tell(self, address: str, room: int, rank: int) -> None:
        """`address`: HOST:PORT of the bootstrap server that decode will ask."""
        self._queue.put((address, room, rank))

    def _run(self) -> None:
        while True:
            address, room, rank = self._queue.get()
            body = json.dumps({"bootstrap_room": room, "dp_rank": rank})
            for pause in PAUSES_S:
                time.sleep(pause)
                wrong = self._post(address, body)
                if not wrong:
                    break
            else:
                log.error("room %d has no prefill rank at %s: %s", room, address, wrong)

    def _post(self, address: str, body: str) -> str:
        """What went wrong; "" when it is registered."""
        if self._connection is None or address != self._address:
            self._connection = HTTPConnection(address, timeout=TIMEOUT_S)
            self._address = address
        try:
            headers = {"Content-Type": "application/json"}
            self._connection.request("POST", PATH, body, headers)
            answer = self._connection.getresponse()
            text = answer.read()
        except (OSError, HTTPException) as error:
            self._connection.close()
            self._connection = None
            return f"{type(error).__name__}: {error}"
        return "" if answer.status == 200 else f"HTTP {answer.status}: {text[:200]!r}"


def counterpart(req: Tokenized, fake_host: str) -> tuple[str, int] | None:
    """Host of the bootstrap server and room of a request that prefill and decode share; None for
    one of a single side. `fake_host`: what SGLang's own probes name."""
    host, room = getattr(req, "bootstrap_host", None), getattr(req, "bootstrap_room", None)
    return None if host in (None, fake_host) or room is None else (str(host), int(room))


def announce(register: Register, req: Tokenized, rank: int, port: int, fake_host: str) -> None:
    """Make the rank of a prefill known, unless the request says it itself or has no decode.
    `port`: of this worker's bootstrap server."""
    shared = counterpart(req, fake_host)
    if shared is None or req.disagg_prefill_dp_rank is not None:
        return
    req.disagg_prefill_dp_rank = rank
    register.tell(f"{shared[0]}:{port}", shared[1], rank)
