"""Who hears what workers say, beside the decider."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.contract.events import GaveWay, Moving
    from toolkit.contract.notices import Notice
    from toolkit.decide import messages as m
    from toolkit.decide.messages import FailureKind
    from toolkit.router.worker import Rank, Worker


class WorkerListener:
    """Hears of nothing; a listener takes what it wants to know."""

    def greeted(self, worker: Worker) -> None:
        """The worker has said what it is."""

    def replaced(self, worker: Worker) -> None:
        """Another process answers at the worker's address, and is about to be greeted."""

    def placed(self, worker: Worker, serial: int) -> None:
        """The worker's experts lie elsewhere: the number of the map."""

    def load_read(self, rank: Rank) -> None:
        """A rank has published its load."""

    def transferred(self, seconds: float, size: int) -> None:
        """A worker has sent so many bytes of KV."""

    def gave_way(self, worker: Worker, event: GaveWay) -> None:
        """Best-effort work of the worker stood still."""

    def given_up(self, worker: Worker, why: str, kind: FailureKind) -> None:
        """All that runs on the worker is given up."""

    def moving(self, worker: Worker, event: Moving) -> None:
        """The worker says what becomes of an order to send a request elsewhere."""

    def prefill_over(self, request: int, at: float) -> None:
        """The prefill of a request is done whose decode worker was chosen before."""

    def stepped(self, rank: Rank) -> None:
        """A rank has made steps."""

    def health_changed(self, worker: str) -> None:
        """Its health, or a rank's of it, is not what it was."""

    def routers_changed(self) -> None:
        """Another router has come to a worker, or gone."""

    def noticed(self, notice: Notice) -> None:
        """Another router says something, through a worker."""

    def note(self, order: m.Noted) -> None:
        """The decider has decided something that no single request or worker is ordered."""
