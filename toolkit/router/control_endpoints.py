"""What clients and operators may ask a control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.router.admin import AdminOrders
from toolkit.router.drain_endpoint import DrainEndpoint
from toolkit.router.others.drains import SharedDrains
from toolkit.router.others.moves import SharedMoves
from toolkit.router.others.requests import RequestsElsewhere
from toolkit.router.request_orders import RequestOrders
from toolkit.router.upgrade_orders import UpgradeOrders
from toolkit.router.views import MetricsPage, Overview, RouterHealth

if TYPE_CHECKING:
    from toolkit.router.control_plane import ControlPlane
    from toolkit.router.eldr.refit_orders import RefitOrders
    from toolkit.router.entry import Endpoints
    from toolkit.router.guard import Guard
    from toolkit.router.keys import Keyring
    from toolkit.router.upgrade_orders import TakesUpgrades


def endpoints(
    control: ControlPlane, guard: Guard, upgrades: TakesUpgrades | None = None
) -> list[Endpoints]:
    """All of them. `upgrades`: None in a router of one process."""
    known, notices, keys, planes = (
        control.known_workers, control.notices, guard.keys, control.planes,
    )  # fmt: skip
    return [
        RouterHealth(known, control.draining),
        Overview(guard, control),
        MetricsPage(control),
        RequestOrders(guard, planes, RequestsElsewhere(notices, keys, planes)),
        AdminOrders(
            guard, control, SharedMoves(known, notices, keys, planes), _refits(control, keys)
        ),
        DrainEndpoint(guard, control, SharedDrains(known, control.drains, notices, keys)),
        UpgradeOrders(guard, upgrades),
    ]


def _refits(control: ControlPlane, keys: Keyring) -> RefitOrders | None:
    """Orders to refit; None: without a profile there is nothing to fit in."""
    if control.locality is None or control.centroids is None:
        return None
    from toolkit.router.eldr.refit_orders import RefitOrders

    return RefitOrders(control.locality, control.centroids, control.notices, keys)
