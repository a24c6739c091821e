"""A machine on which two halves of a batch take turns: one computes while the other's tokens
travel."""

from toolkit.simulate.costs import links_of
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.costs.links import Link
from toolkit.simulate.costs.wrapped import Wrapped


class Overlapped(Wrapped):
    """The costs `cost`, whose all-to-all takes a share `hidden` less. What halves cost (each loads
    its own experts, and is a smaller matrix) is left out. ValueError: costs without `links`, or no
    share."""

    def __init__(self, cost: CostModel, hidden: float) -> None:
        super().__init__(cost)
        links = links_of(cost)
        if links is None or not 0 <= hidden <= 1:
            raise ValueError(f"{hidden:g} of what is sent cannot be hidden in these costs")
        shorter = {name: _shorter(getattr(links, name), hidden) for name in ("dispatch", "combine")}
        self.links = links.model_copy(update=shorter)


def _shorter(link: Link, hidden: float) -> Link:
    named = ("base", "per_node_byte", "per_byte")
    return link.model_copy(update={name: (1 - hidden) * getattr(link, name) for name in named})
