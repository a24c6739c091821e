"""A decode worker hears from prefill workers which experts their prompts used.

With SGLang's router in front a request reaches a prefill and a decode worker at once, and nobody
stands between the two who could hand the signature on. But the decode's DP controller knows from
the request which bootstrap server its prefill has, that server tells its worker's HTTP port, and
that worker pushes `prefill_done` with signature and bootstrap room over `/toolkit/events`
(`patches.streams.event_stream`), as it does to our router. One thread a prefill worker reads them
here.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from http.client import HTTPConnection, HTTPException, HTTPResponse
from threading import Lock, Thread
from typing import TYPE_CHECKING

from patches.http.worker_key import header
from toolkit.contract.addresses import place_in
from toolkit.contract.events import Down, Hello, PrefillDone, decode
from toolkit.contract.paths import EVENTS
from toolkit.contract.variables import LAYERS_VARIABLE
from toolkit.limited_logs import limited_logger

if TYPE_CHECKING:
    from toolkit.signatures.reader import SignatureReader, SignatureSample

log = limited_logger("toolkit.dp")

SERVER_INFO = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
SILENT_S = 5.0
"""Streams say something every second."""
PAUSES_S = (0.05, 1.0)
MOST_ROOMS = 4096
"""Kept of signatures that nobody has asked for: every decode worker hears of every prompt."""


class PrefillEvents:
    """Signatures by bootstrap room, from every prefill worker that has been seen.

    `subscribed` and `take` never block. `reader` is used by the threads that read the streams, and
    says what is wrong with a worker that records other layers or serves another model. They live
    until `close`.
    """

    def __init__(self, reader: SignatureReader) -> None:
        self._reader = reader
        self._lock = Lock()
        self._closed = False
        self._up: dict[str, bool] = {}
        self._rooms: OrderedDict[int, SignatureSample | str] = OrderedDict()

    def subscribed(self, bootstrap: str) -> bool:
        """Whether the worker behind this bootstrap server (HOST:PORT) is heard now, and runs
        prompts before their decode is known: else waiting for events would be in vain. One that is
        new is listened to from now on."""
        known = self._up.get(bootstrap)
        if known is None:
            self._up[bootstrap] = False
            name = f"toolkit-prefill-events-{bootstrap}"
            Thread(target=self._listen, args=(bootstrap,), name=name, daemon=True).start()
        return bool(known)

    def take(self, room: int) -> SignatureSample | str | None:
        """The sample of the prompt, in a few words why it has none, or None: not heard of yet."""
        with self._lock:
            return self._rooms.pop(room, None)

    def close(self) -> None:
        """No new streams. An open one ends when its worker has been silent for `SILENT_S`."""
        self._closed = True

    def _listen(self, bootstrap: str) -> None:
        pause = PAUSES_S[0]
        while not self._closed:
            try:
                wrong = self._follow(bootstrap)
            except (OSError, HTTPException, ValueError, KeyError) as error:
                wrong = f"{type(error).__name__}: {error}"
            if self._up[bootstrap]:
                log.warning("nothing heard of the prompts of %s: %s", bootstrap, wrong)
                pause = PAUSES_S[0]
            self._up[bootstrap] = False
            time.sleep(pause)
            pause = min(2 * pause, PAUSES_S[1])

    def _follow(self, bootstrap: str) -> str:
        """Read one stream to its end; why it ended."""
        server = HTTPConnection(bootstrap, timeout=SILENT_S)
        try:
            port = json.loads(_get(server, SERVER_INFO).read())["prefill_http_port"]
        finally:
            server.close()
        worker = HTTPConnection(place_in(bootstrap).host, int(port), timeout=SILENT_S)
        try:
            stream = _get(worker, EVENTS)
            while line := stream.readline():
                match decode(line):
                    case Hello() as hello:
                        self._greet(bootstrap, hello)
                    case PrefillDone() as done:
                        self._done(bootstrap, done)
                    case Down():
                        break
        finally:
            worker.close()
        return "its event stream ended"

    def _greet(self, bootstrap: str, hello: Hello) -> None:
        self._reader.greet(bootstrap, "prefill", hello)
        self._up[bootstrap] = bool(hello.signature and hello.optimistic_prefill)
        if self._up[bootstrap]:
            log.info("signatures come from the prefill worker at %s", bootstrap)
        else:
            log.error(
                "prefill worker %s sends no signatures before its decode is known: give it "
                "--optimistic-prefill-attempts 1000, --enable-return-routed-experts and "
                "%s (`toolkit launch` does)",
                bootstrap,
                LAYERS_VARIABLE,
            )

    def _done(self, bootstrap: str, event: PrefillDone) -> None:
        if event.room is None:
            return
        sample = self._reader.read(bootstrap, event.signature)
        with self._lock:
            self._rooms[event.room] = sample
            while len(self._rooms) > MOST_ROOMS:
                self._rooms.popitem(last=False)


def _get(connection: HTTPConnection, path: str) -> HTTPResponse:
    """The answer, its body unread. HTTPException: a status other than 200."""
    connection.request("GET", path, headers=header() if path == EVENTS else {})
    answer = connection.getresponse()
    if answer.status != 200:
        raise HTTPException(f"{path} answered {answer.status}")
    return answer
