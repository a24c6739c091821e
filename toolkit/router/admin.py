"""What the admin may order: policies, refits, moves; and what the launcher tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from toolkit.decide.messages import Expected
from toolkit.policies import check_policy
from toolkit.router import return_reports
from toolkit.router.asks import ClearFigures, ask_all
from toolkit.router.errors import ApiError
from toolkit.router.guard import CALLER
from toolkit.router.own_answers import as_json, refusal, told
from toolkit.router.unserved import answered
from toolkit.settings.router.choosing import MOVES_BY
from toolkit.settings.router.config import why_not

if TYPE_CHECKING:
    from toolkit.router.control_plane import ControlPlane
    from toolkit.router.eldr.refit_orders import RefitOrders
    from toolkit.router.guard import Guard
    from toolkit.router.others.moves import SharedMoves

SWITCHES = ("prefill", "decode", "dispatch", "first_token", "early_choice", "moves")
"""What /admin/policy can change."""


class AdminOrders:
    """The endpoints under /admin. `moves`: carries out the order to move requests; `refits`: the
    order to refit, None without a profile."""

    def __init__(
        self, guard: Guard, control: ControlPlane, moves: SharedMoves, refits: RefitOrders | None
    ) -> None:
        self._guard = guard
        self._control = control
        self._moves = moves
        self._refits = refits

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/admin/policy", self.policy)
        app.router.add_post("/admin/refit", self.refit)
        app.router.add_post("/admin/migrate", self.migrate)
        app.router.add_post("/admin/returns", self.returns)

    async def policy(self, request: web.Request) -> web.Response:
        """Switch policies, the dispatch, who tells first tokens or whether decode workers of long
        prompts are chosen early, at run time; all or nothing."""
        refused = self._guard.refuse_order(request)
        if refused is not None:
            return refused
        body = await told(request)
        if not isinstance(body, dict) or not set(body) <= set(SWITCHES):
            return refusal(400, f"the body must be an object of some of {', '.join(SWITCHES)}")
        control, policies, switches = (
            self._control, self._control.policies, self._control.switches,
        )  # fmt: skip
        first_token = body.get("first_token", switches.first_token)
        if first_token not in ("prefill", "decode"):
            return refusal(400, "first_token must be 'prefill' or 'decode'")
        early = body.get("early_choice", switches.early_choice)
        if not isinstance(early, bool):
            return refusal(400, "early_choice must be true or false")
        dispatch = body.get("dispatch", policies.dispatch)
        if dispatch not in ("late", "concurrent"):
            return refusal(400, "dispatch must be 'late' or 'concurrent'")
        moves = body.get("moves", switches.moves)
        if moves not in MOVES_BY:
            return refusal(400, f"moves must be one of {', '.join(MOVES_BY)}")
        try:
            for side in ("prefill", "decode"):
                check_policy(str(body.get(side, policies.names[side])), side)
        except ValueError as error:
            return refusal(400, str(error))
        decode = str(body.get("decode", policies.names["decode"]))
        wrong = why_not(decode, control.config, dispatch)
        if wrong is not None:
            return refusal(400, wrong)
        for side in ("prefill", "decode"):
            if side in body:
                policies.use(side, body[side])
        policies.use_dispatch(dispatch)
        switches.first_token, switches.early_choice = first_token, early
        switches.moves = moves
        # They then describe one setting.
        await ask_all(control.planes, ClearFigures())
        control.metrics.clear_rings()
        if policies.balance is not None:
            policies.balance.clear()
        told_back = {"first_token": first_token, "early_choice": early, "moves": moves}
        return as_json({**policies.names, "dispatch": dispatch, **told_back})

    async def refit(self, request: web.Request) -> web.Response:
        """Refit ELDR's centroids on recent requests now, at the router that fits for all;
        {"force": true} adopts in any case."""
        refused = self._guard.refuse_order(request)
        if refused is not None:
            return refused
        raw = await request.read()
        body = await told(request) if raw else {}
        if not isinstance(body, dict) or not set(body) <= {"force"}:
            return refusal(400, 'the body must be empty or {"force": true}')
        force = body.get("force", False)
        if not isinstance(force, bool):
            return refusal(400, "force must be true or false")
        if self._refits is None:
            return refusal(
                409,
                "there is no profile to refit in: give the router's configuration a `profile` and "
                "decode_policy eldr",
            )
        try:
            return as_json(await self._refits.order(request[CALLER], force))
        except ApiError as error:
            return answered(error, request.path)

    async def migrate(self, request: web.Request) -> web.Response:
        """Move requests to other workers (`toolkit.router.others.moves`)."""
        refused = self._guard.refuse_order(request)
        if refused is not None:
            return refused
        try:
            return as_json(await self._moves.order(request[CALLER], await told(request)))
        except ApiError as error:
            return refusal(error.status, error.message)

    async def returns(self, request: web.Request) -> web.Response:
        """The launcher tells how long starts take, and when workers are back."""
        refused = self._guard.refuse_order(request)
        if refused is not None:
            return refused
        reports = return_reports.read(await told(request))
        if isinstance(reports, str):
            return refusal(400, reports)
        known_workers = self._control.known_workers
        names = {worker.name for worker in known_workers.workers}
        for name, each in reports.items():
            if name in names:
                known_workers.channel.send(Expected(name, each.usual_s, each.back_in_s))
        return as_json({"taken": sorted(names & reports.keys())})
