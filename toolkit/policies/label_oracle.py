"""Label oracle: every label has a decode worker of its own. ELDR's baseline "Domain"."""

from collections import Counter, OrderedDict
from collections.abc import Sequence

from toolkit.policies.base import Decision, Group, Policy, RequestView, WorkerView, healthy_indices
from toolkit.policies.support.rotation import Rotation


class LabelOraclePolicy(Policy):
    """The decode worker that the request's label belongs to.

    Formula: home(label), fixed when a label is first seen: argmin over healthy workers of the
    labels (a count) that live there, the first of equals. Requests of one domain use similar
    experts, so keeping a domain together loads fewer distinct experts a step. Labels come from the
    client, and queues are not looked at: this is what a router could do that is told the domain of
    each request, the bound that signatures are measured against, and nothing for serving, since one
    popular label overloads its worker. Ranks that share their experts are one worker, in which the
    label goes to the shortest queue.

    Degraded: a label whose worker is unhealthy goes to the shortest queue (requests running +
    waiting + sent since the reading, the least recently chosen of equals) until its worker is
    back, and stays at home there; a request without a label goes to the shortest queue.
    Knobs: `capacity` (labels remembered, the least recently seen out first: it then gets a home
    anew). Source: ELDR (arXiv 2607.00466), "Baselines", the oracle label-based router "Domain".
    """

    name = "label_oracle"

    def __init__(self, seed: int = 0, capacity: int = 1024) -> None:
        self._rotation = Rotation(seed)
        self._capacity = capacity
        self._homes: OrderedDict[str, Group] = OrderedDict()
        self._labels: Counter[Group] = Counter()

    def __len__(self) -> int:
        """Labels remembered now."""
        return len(self._homes)

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        healthy = healthy_indices(workers)
        if not healthy:
            return None
        if not request.label:
            return self._shortest(workers, healthy, "no label")
        home = self._home(request.label, workers, healthy)
        there = [index for index in healthy if workers[index].group == home]
        if not there:
            return self._shortest(workers, healthy, f"home of {request.label[:40]!r} is down")
        reason = f"home of {request.label[:40]!r}"
        return self._shortest(workers, there, reason) if there[1:] else Decision(there[0], reason)

    def _home(self, label: str, workers: Sequence[WorkerView], healthy: list[int]) -> Group:
        home = self._homes.get(label)
        if home is None:
            groups = [workers[index].group for index in healthy]
            home = min(groups, key=lambda group: self._labels[group])
            self._homes[label] = home
            self._labels[home] += 1
        self._homes.move_to_end(label)
        if len(self._homes) > self._capacity:
            _, old = self._homes.popitem(last=False)
            self._labels[old] -= 1
        return home

    def _shortest(self, workers: Sequence[WorkerView], healthy: list[int], reason: str) -> Decision:
        shortest = min(workers[i].requests for i in healthy)
        ties = [i for i in healthy if workers[i].requests == shortest]
        return Decision(self._rotation.take(workers, ties), f"{reason}, {shortest} requests")
