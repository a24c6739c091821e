"""The order to install other expert maps: `POST /toolkit/placement`, from HTTP to the schedulers.

`GET` answers with the present map and its serial number. An order names the serial that it builds
on, so of two that were made of the same map the second is refused. It goes the way of all control
messages, so every rank takes it up between the same two steps.

What is complete on every rank is written to the file that RELOCATE_VARIABLE names; a server that is
started again begins with that map (`patches.relocate.kept`).
"""

import asyncio
import itertools
from dataclasses import dataclass, field

import msgspec

from patches import server_state
from patches.base import Hook, Patch, Process, resolve
from patches.dp import layout
from patches.layers import Original
from patches.relocate import kept
from patches.sglang_types import TokenizerManager
from patches.streams.event_stream import hub_of
from toolkit.contract.events import Placed
from toolkit.contract.paths import PLACEMENT
from toolkit.contract.placement import PlacementState
from toolkit.contract.variables import RELOCATE_VARIABLE
from toolkit.limited_logs import limited_logger

APP = "sglang.srt.entrypoints.http_server.app"
log = limited_logger("toolkit.relocate")

WAIT_LIMIT_S = 60.0
"""For all ranks to answer. They answer after a step and the transfers of the order."""

Row = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RelocationOrder:
    """Install `rows` (by model layer, its physical-to-logical row [P]) over the map of this
    `serial`; without rows only say what is there. Answered under `number`."""

    number: int
    serial: int = 0
    rows: dict[int, Row] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Relocated:
    """A rank's answer. `problem`: nothing was changed, and why.

    rows: the whole map as it is now; known: its layers that have experts, and expert_bytes: what
    one of their experts weighs, where it was only asked for. seconds: for which the rank stood
    still. bytes: of weights that came from other ranks.
    """

    number: int
    dp_rank: int
    problem: str = ""
    serial: int = 0
    rows: dict[int, Row] = field(default_factory=dict)
    known: tuple[int, ...] = ()
    experts: int = 0
    expert_bytes: int = 0
    gpus: int = 0
    gpus_per_node: int = 0
    dispatch: str = ""
    seconds: float = 0.0
    bytes: int = 0


def read_order(body: object) -> tuple[int, dict[int, Row]]:
    """Serial and rows of a request's body.

    Raises:
        ValueError: says what is wrong with it.
    """
    if not isinstance(body, dict) or set(body) != {"serial", "layers"}:
        raise ValueError('an order is {"serial": 3, "layers": {"0": [expert of each slot]}}')
    serial, layers = body["serial"], body["layers"]
    if type(serial) is not int:
        raise ValueError("serial: of the map that the order builds on, as GET says it")
    if not isinstance(layers, dict) or not layers:
        raise ValueError("layers: by number of a layer, the expert of each of its slots")
    rows = {}
    for name, row in layers.items():
        if not name.isdecimal() or len(name) > 6:
            raise ValueError(f"layers: {name!r:.20} is no number of a layer")
        if not isinstance(row, list) or not all(type(expert) is int for expert in row):
            raise ValueError(f"layers: {name} must be a list of expert numbers")
        rows[int(name)] = tuple(row)
    return serial, rows


class Desk:
    """Sends orders to the schedulers, one at a time, and collects what the ranks say."""

    def __init__(self, manager: TokenizerManager) -> None:
        self._manager = manager
        self._numbers = itertools.count(1)
        self._lock = asyncio.Lock()
        self._answers: asyncio.Queue[Relocated] = asyncio.Queue()
        self._told = 0
        """The serial that listeners of the event stream know of."""
        self.changing = asyncio.Lock()
        """Held from an order until its map is kept: files of two orders would be mixed up."""

    def collect(self, answer: Relocated) -> None:
        """Handler of the schedulers' message."""
        self._answers.put_nowait(answer)

    async def ask(self, serial: int = 0, rows: dict[int, Row] | None = None) -> list[Relocated]:
        """One answer of each DP rank.

        Raises:
            TimeoutError: not all have answered; what they did is to be asked.
        """
        manager = self._manager
        async with self._lock:
            order = RelocationOrder(next(self._numbers), serial, rows or {})
            manager.auto_create_handle_loop()  # what hears the answers, before any request too
            manager._dispatch_to_scheduler(order)
            answers: dict[int, Relocated] = {}
            count = layout.of_server(manager.server_args)
            async with asyncio.timeout(WAIT_LIMIT_S):
                while len(answers) < count:
                    answer = await self._answers.get()
                    if answer.number == order.number:
                        answers[answer.dp_rank] = answer
                        self._tell(answer.serial)
        return [answers[rank] for rank in sorted(answers)]

    def _tell(self, serial: int) -> None:
        """The router, when the map is another one: what a rank has carried out all carry out."""
        if serial != self._told:
            self._told = serial
            hub_of(self._manager).publish(Placed(serial))


def desk_of(manager: TokenizerManager) -> Desk:
    """That of this server."""
    state = server_state.of(manager)
    return state.find(Desk) or state.keep(Desk(manager))


async def present(desk: Desk) -> tuple[int, dict[str, object]]:
    """Status and body of GET."""
    try:
        first, *rest = await desk.ask()
    except TimeoutError:
        return 504, {"error": f"the ranks have not answered within {WAIT_LIMIT_S:g} s"}
    if any(other.rows != first.rows for other in rest):
        # Copies of the model have a map each; they get the same orders.
        return 409, {"error": "the DP ranks have different maps: start the server again"}
    state = PlacementState(
        serial=first.serial,
        experts=first.experts,
        moe_layers=first.known,
        gpus=first.gpus,
        gpus_per_node=first.gpus_per_node,
        dispatch=first.dispatch,
        layers={str(layer): row for layer, row in first.rows.items()},
        expert_bytes=first.expert_bytes,
        obstacle=first.problem,
    )
    return 200, msgspec.to_builtins(state)


async def install(desk: Desk, body: object) -> tuple[int, dict[str, object]]:
    """Status and body of POST."""
    try:
        serial, rows = read_order(body)
    except ValueError as error:
        return 400, {"error": str(error)}
    # Whoever comes second waits, and is refused by the ranks: its serial is no more by then.
    async with desk.changing:
        return await _install(desk, serial, rows)


async def _install(desk: Desk, serial: int, rows: dict[int, Row]) -> tuple[int, dict[str, object]]:
    try:
        answers = await desk.ask(serial, rows)
    except TimeoutError:
        return 504, {"error": f"the ranks have not answered within {WAIT_LIMIT_S:g} s: ask again"}
    problems = sorted({answer.problem for answer in answers if answer.problem})
    if problems:
        return 409, {"error": "; ".join(problems), "serial": answers[0].serial}
    changed: dict[str, object] = {
        "serial": answers[0].serial,
        "seconds": max(answer.seconds for answer in answers),
        "bytes": sum(answer.bytes for answer in answers),
    }
    try:
        await _keep(answers[0].rows)
    except OSError as error:
        log.error("the map could not be kept for a restart: %s", error)
        changed["kept"] = str(error)
    return 200, changed


async def _keep(rows: dict[int, Row]) -> None:
    path = kept.place()
    if path is not None:
        await asyncio.to_thread(kept.write, path, [rows[layer] for layer in sorted(rows)])


def _add_routes() -> None:
    from fastapi import Request
    from fastapi.responses import JSONResponse

    async def show() -> JSONResponse:
        status, body = await present(desk_of(server_state.serving_manager()))
        return JSONResponse(body, status)

    async def order(request: Request) -> JSONResponse:
        try:
            asked = await request.json()
        except ValueError as error:
            return JSONResponse({"error": f"the body is no JSON: {error}"}, 400)
        status, body = await install(desk_of(server_state.serving_manager()), asked)
        return JSONResponse(body, status)

    resolve(APP).add_api_route(PLACEMENT, show, methods=["GET"])
    resolve(APP).add_api_route(PLACEMENT, order, methods=["POST"])


def _pass_answers_on(original: Original[None], manager: TokenizerManager) -> None:
    original(manager)
    manager._result_dispatcher += type(manager._result_dispatcher)(
        [(Relocated, desk_of(manager).collect)]
    )


PATCH = Patch(
    name="relocation_order",
    why="experts move to where the traffic is while the worker serves",
    independent_of={
        "move_order": "each hears messages of its own kind",
    },
    processes=frozenset({Process.MAIN}),
    variable=RELOCATE_VARIABLE,
    hooks=(
        Hook(
            "sglang.srt.managers.tokenizer_manager.TokenizerManager.init_request_dispatcher",
            _pass_answers_on,
            ("self",),
        ),
    ),
    requires=(
        APP,
        "sglang.srt.entrypoints.http_server.get_global_state",
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._dispatch_to_scheduler",
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.auto_create_handle_loop",
    ),
    attach=_add_routes,
)
