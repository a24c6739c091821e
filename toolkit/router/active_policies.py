"""The policies that decide now, and what can be switched at run time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from toolkit.decide import messages as m
from toolkit.policies import make_policy
from toolkit.policies.base import Needs, Policy
from toolkit.router.balance import Balance
from toolkit.router.decisions import DecisionRecord
from toolkit.router.request import Wanted
from toolkit.router.worker_listener import WorkerListener
from toolkit.settings.router.choosing import Dispatch

if TYPE_CHECKING:
    from toolkit.router.eldr.locality import Locality
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.metrics import Metrics
    from toolkit.router.switches import Switches
    from toolkit.settings.router.config import RouterConfig

log = logging.getLogger("toolkit.router")


class ActivePolicies(WorkerListener):
    """Makes policies and gives them to the decider. Counts what the decider says that it did."""

    def __init__(
        self,
        config: RouterConfig,
        known_workers: KnownWorkers,
        metrics: Metrics,
        switches: Switches,
        locality: Locality | None = None,
    ) -> None:
        self.config = config
        self.metrics = metrics
        self.switches = switches
        self.locality = locality
        self.decider = known_workers.decider
        self._channel = known_workers.channel
        self.balance = Balance(known_workers.side("decode")) if config.disaggregated else None
        if self.balance is not None:
            known_workers.listen(self.balance)
        known_workers.listen(self)
        self.record = DecisionRecord(config)
        self.use("prefill", config.prefill_policy)
        self.use("decode", config.decode_policy)

    @property
    def policies(self) -> dict[str, Policy]:
        """By side."""
        return self.decider.choosing.policies

    @property
    def names(self) -> dict[str, str]:
        """Of the policies, by side."""
        return {side: policy.name for side, policy in self.policies.items()}

    def use(self, side: str, name: str) -> None:
        """A fresh policy for `side`. ValueError names the known ones."""
        seed, tau = self.config.policy_seed, self.config.tau
        policy = self.record.of(make_policy(name, seed, side, tau), side)
        if side == "decode" and self.locality is not None:
            self.locality.attach(policy)
        self._channel.send(m.UsePolicy(side, policy))
        needs = Needs()
        for each in self.policies.values():
            needs |= each.needs
        self.switches.wanted = Wanted(
            blocks=self.config.record is not None or needs.blocks,
            users=needs.user,
            hashes=needs.hash,
        )

    @property
    def dispatch(self) -> Dispatch:
        """When decode workers are chosen."""
        return "late" if self.decider.attempts.late else "concurrent"

    def use_dispatch(self, dispatch: Dispatch) -> None:
        """For attempts from now on."""
        self._channel.send(m.UseDispatch(dispatch == "late"))

    def note(self, order: m.Noted) -> None:
        """What the decider wants to be counted."""
        match order:
            case m.Waited():
                self.metrics.pool_wait.observe(order.seconds)
            case m.Ejected():
                self.metrics.ejected.labels(order.worker).inc()
                log.warning("worker %s is left alone for a while: it fails requests", order.worker)
            case m.PairLeftOut():
                log.warning(
                    "KV does not get from %s to %s, though both are well with others: no request "
                    "goes that way for %.0f s",
                    *(order.prefill, order.decode, order.seconds),
                )
            case m.Quarantined():
                self.metrics.poisoned.inc()
            case _:
                pass
