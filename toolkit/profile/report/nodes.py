"""Experts and requests on nodes: who lies where, and what crosses, before and after."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from toolkit.profile.report import heat
from toolkit.profile.report.activations import BOUNDS as SHARES
from toolkit.profile.report.placement import BOUNDS, MEANING, load_map
from toolkit.profile_folder.schema import Profile
from toolkit.report import html, svg
from toolkit.report.numbers import change, count, number, percent, plural

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from toolkit.profile.node_traffic import NodeTraffic, PlacementSide

KEY = "s-nodes"
OWN = ("unused", "under ¼", "¼–½", "½–¾", "¾–1", "1–1½", "1½–2", "2–3", "over 3 × even")
EVEN = tuple(words.replace("mean", "even") for words in MEANING)


def section(profile: Profile, traffic: NodeTraffic) -> str:
    unit = traffic.unit
    return html.section(
        KEY,
        f"Experts and requests on {unit}s",
        _lead(traffic),
        _matrices(traffic),
        _figures(traffic),
        _slots(profile, traffic),
        _loads(profile, traffic),
        _homes(profile, traffic),
        _experts(profile, traffic),
    )


def _lead(traffic: NodeTraffic) -> str:
    topology = traffic.topology
    size = plural(topology.gpus, "GPU")
    if traffic.unit == "node":
        size = f"{plural(topology.nodes, 'node')} of {plural(topology.gpus_per_node, 'GPU')}"
    return (
        f"One decode server on {size} with {plural(traffic.redundant, 'redundant expert')}, DP "
        "attention with a rank on each GPU, replicas picked nearest first. Everything is fitted to "
        f"the decode traffic of {plural(len(traffic.fitted), 'request')} and shown for that of "
        f"{count(traffic.judged)} others, which were held out; these come again, in other orders, "
        "until every rank has its share. Before: SGLang's EPLB (its global variant: a profile does "
        "not know expert groups), requests dealt round robin. After: experts and clusters of "
        "requests laid together, each request sent to a rank near its experts."
    )


def _sides(traffic: NodeTraffic) -> tuple[tuple[str, str, PlacementSide], ...]:
    return (
        ("before", "Before: EPLB, round robin", traffic.before),
        ("after", "After: laid together, sent to their experts", traffic.after),
    )


def _matrices(traffic: NodeTraffic) -> str:
    before, after, unit = traffic.before, traffic.after, traffic.unit
    takeaway = (
        f"Of all (token, expert) pairs {percent(before.across)} cross {unit}s before and "
        f"{percent(after.across)} after ({change(after.across, before.across)}); the busiest GPU "
        f"of a layer serves {number(float(before.balance.mean()))} times the mean before and "
        f"{number(float(after.balance.mean()))} times after."
    )
    panels = [
        html.Panel(_matrix(side, unit, words, f"traffic-{key}"), words, wide=True)
        for key, words, side in _sides(traffic)
    ]
    return html.figure(
        "node-traffic",
        takeaway,
        panels,
        legend=heat.legend("d", EVEN, "Pairs, against an even spread over all cells:"),
        reading=f"A row is the {unit} where a request's attention runs, a column the one that "
        "serves its experts. Numbers are percent of all pairs; the diagonal stays at home.",
        hover=True,
    )


def _matrix(side: PlacementSide, unit: str, words: str, key: str) -> str:
    share, size = side.matrix, len(side.matrix)
    cell = (min(58.0, max(7.0, 400 / size)), min(40.0, max(7.0, 320 / size)))
    left, top = 40.0, 34.0
    parts = _cells(share * size * size, 100 * share, (left, top), cell, unit, f"served by {unit}")
    wide, high = size * cell[0], size * cell[1]
    for i in heat.thinned(size, int(high // 13)):
        parts.append(svg.text(left - 6, top + (i + 0.5) * cell[1] + 3.5, str(i), "tick", "end"))
    for i in heat.thinned(size, int(wide // 20)):
        parts.append(svg.text(left + (i + 0.5) * cell[0], top - 5, str(i), "tick", "middle"))
    parts.append(svg.text(left, 13, f"serving {unit} →", "name"))
    parts.append(svg.text(2, top + high + 16, f"↑ home {unit}", "name"))
    description = f"{percent(side.across)} of pairs lie off the diagonal and cross {unit}s."
    width = max(left + wide + 8, 130)
    return svg.picture(width, top + high + 22, f"Traffic, {words}", description, parts, key)


def _cells(
    relative: NDArray[Any], shown: NDArray[Any],
    place: tuple[float, float], cell: tuple[float, float],
    row: str, column: str, rows: list[str] | None = None,
) -> list[str]:  # fmt: skip
    """Coloured by `relative` [R, C], 1 being even; with the numbers `shown` where they fit."""
    import numpy as np

    levels = np.digitize(relative, BOUNDS)
    parts = [heat.cells(levels, place, cell, "d", meaning=EVEN, row=row, column=column, rows=rows)]
    if cell[0] >= 28 and cell[1] >= 13:
        for (i, j), value in np.ndenumerate(shown):
            x, y = place[0] + (j + 0.5) * cell[0], place[1] + (i + 0.5) * cell[1] + 4
            parts.append(svg.text(x, y, f"{value:.1f}", f"in-cell d{levels[i, j]}t", "middle"))
    return parts


def _figures(traffic: NodeTraffic) -> str:
    arms = (
        ("EPLB, round robin (before)", traffic.eplb),
        ("EPLB, sent to their experts", traffic.eplb_local),
        ("laid together, round robin", traffic.laid),
        ("laid together, sent to their experts (after)", traffic.laid_local),
    )
    rows = [
        [
            words, percent(side.across), percent(side.own), number(float(side.balance.mean())),
            number(float(side.balance.max())), number(side.fullest),
        ]
        for words, side in arms
    ]  # fmt: skip
    unit = traffic.unit
    heads = (
        "Experts, requests", f"Pairs that cross {unit}s", "Pairs on their own GPU",
        "GPU load max/mean", "worst layer", "Fullest rank's requests/mean",
    )  # fmt: skip
    return html.table("Each part alone, on held-out requests.", heads, rows)


def _slots(profile: Profile, traffic: NodeTraffic) -> str:
    unit, even = traffic.unit, 1 / traffic.topology.nodes
    shares = [_near(side) for _, _, side in _sides(traffic)]
    means = [float(share.mean()) for share in shares]
    panels = [
        html.Panel(_slot_map(profile, side, share, unit, words, f"slots-{key}"), words, full=True)
        for (key, words, side), share in zip(_sides(traffic), shares, strict=True)
    ]
    return html.figure(
        "node-slots",
        f"An expert's tokens come from its own {unit} for {percent(means[0])} before and "
        f"{percent(means[1])} after, on average over slots; {percent(even)} would be even.",
        panels,
        legend=heat.legend(
            "s", OWN, f"Tokens of a slot's expert that are at home on the slot's {unit}:"
        ),
        reading=f"A row is a MoE layer, a column an expert slot; thin lines part {unit}s. 1 is the "
        f"share that requests spread evenly over {unit}s would have.",
        hover=True,
    )


def _near(side: PlacementSide) -> NDArray[Any]:
    """[L, P]: of the tokens of each slot's expert those at home on the slot's node."""
    import numpy as np

    topology, table = side.topology, side.placement.physical_to_logical
    by_node = side.load.reshape(topology.nodes, topology.gpus_per_node, *side.load.shape[1:]).sum(1)
    node = np.arange(table.shape[1]) // (table.shape[1] // topology.nodes)
    layer = np.arange(len(table))[:, None]
    total = by_node.sum(axis=0)[layer, table]
    share: NDArray[Any] = by_node[node, layer, table] / np.maximum(total, 1)
    return share


def _slot_map(
    profile: Profile, side: PlacementSide, share: NDArray[Any], unit: str, words: str, key: str
) -> str:
    import numpy as np

    table, topology = side.placement.physical_to_logical, side.topology
    layers, slots = table.shape
    used = side.load.sum(axis=0)[np.arange(layers)[:, None], table] > 0
    levels = np.where(used, np.digitize(share * topology.nodes, SHARES) + 1, 0)
    cell = (min(26.0, max(3.2, 960 / slots)), min(22.0, max(6.0, 300 / layers)))
    left, top = 46.0, 20.0
    wide, high = slots * cell[0], layers * cell[1]
    gpu = np.arange(slots) // side.placement.slots
    names = [f"{slot} of GPU {g}" for slot, g in enumerate(gpu.tolist())]
    numbers = profile.model.layers
    parts = [
        heat.cells(
            levels, (left, top), cell, "s", meaning=OWN, row="layer", column="slot",
            rows=numbers, columns=names,
        )
    ]  # fmt: skip
    each = wide / topology.nodes
    for node in range(topology.nodes):
        x = left + node * each
        if node:
            parts.append(svg.line(x, top - 6, x, top + high + 4, "axis"))
        if each >= 46 or node % 4 == 0:
            parts.append(svg.text(x + each / 2, 13, f"{unit} {node}", "name", "middle"))
    for i in heat.thinned(layers, int(high // 13)):
        y = top + (i + 0.5) * cell[1] + 3.5
        parts.append(svg.text(left - 6, y, str(numbers[i]), "tick", "end"))
    parts.append(svg.text(left - 6, 13, "layer", "name", "end"))
    mean = percent(float(share.mean()))
    description = f"{layers} layers by {slots} slots; {mean} of a slot's tokens are at home there."
    return svg.picture(
        left + wide + 8, top + high + 8, f"Expert slots, {words}", description, parts, key
    )


def _loads(profile: Profile, traffic: NodeTraffic) -> str:
    nodes, unit = traffic.topology.nodes, traffic.unit
    found = {}
    for key, _, side in _sides(traffic):
        load = side.served.reshape(len(side.served), nodes, -1).sum(axis=2)
        found[key] = load / load.mean(axis=1, keepdims=True)
    worst = {key: float(load.max(axis=1).mean()) for key, load in found.items()}
    panels = [
        html.Panel(
            load_map(found[key], profile.model.layers, words, f"node-load-{key}", unit),
            words,
            wide=True,
        )
        for key, words, _ in _sides(traffic)
    ]
    return html.figure(
        "node-load",
        f"The busiest {unit} of a layer serves {number(worst['before'])} times the mean before "
        f"and {number(worst['after'])} times after.",
        panels,
        legend=heat.legend("d", MEANING, f"Pairs that a {unit} serves, against the layer's mean:"),
        reading=f"A row is a {unit}, a column a MoE layer.",
        hover=True,
    )


def _homes(profile: Profile, traffic: NodeTraffic) -> str:
    import numpy as np

    unit, kept, home = traffic.unit, traffic.kept, traffic.layout.nodes
    own = kept[np.arange(len(kept)), home]
    figure = html.figure(
        "cluster-homes",
        f"{plural(len(kept), 'cluster')} of requests have their homes on "
        f"{plural(traffic.topology.nodes, unit)}: a home has replicas for {percent(own.mean())} of "
        f"its clusters' fitted pairs, the mean {unit} for {percent(kept.mean())}.",
        [html.Panel(_home_map(profile, traffic), wide=True)],
        legend=heat.legend("d", EVEN, f"Pairs with a replica there, against the mean {unit}:"),
        reading="A row is a cluster of fitted requests by their signatures, as ELDR makes them, in "
        f"the order of their homes; a column is a {unit}. Numbers are percent of the cluster's "
        "pairs; the outline marks its home.",
        hover=True,
    )
    rows = [
        [
            str(cluster), str(home[cluster]), str(traffic.layout.home[cluster]),
            str(int((traffic.label == cluster).sum())), percent(float(own[cluster])),
            _mostly(profile, traffic, cluster, "domain"),
            _mostly(profile, traffic, cluster, "language"),
        ]
        for cluster in _order(traffic)
    ]  # fmt: skip
    heads = (
        "Cluster", f"Home {unit}", "Home GPU", "Requests", "Pairs with a replica at home",
        "Domains", "Languages",
    )  # fmt: skip
    table = html.table("Clusters of fitted requests, and where they decode.", heads, rows)
    return figure + html.details(f"Table: homes of {plural(len(rows), 'cluster')}", table)


def _order(traffic: NodeTraffic) -> list[int]:
    home = traffic.layout.home.tolist()
    return sorted(range(len(home)), key=lambda cluster: (home[cluster], cluster))


def _home_map(profile: Profile, traffic: NodeTraffic) -> str:
    order, unit, nodes = _order(traffic), traffic.unit, traffic.topology.nodes
    kept = traffic.kept[order]
    cell = (min(58.0, max(14.0, 460 / nodes)), min(24.0, max(12.0, 320 / len(order))))
    names = [
        f"{cluster}: {_mostly(profile, traffic, cluster, 'domain', 1)}, "
        f"{_mostly(profile, traffic, cluster, 'language', 1)}"
        for cluster in order
    ]
    left, top = 190.0, 34.0
    parts = _cells(
        kept / kept.mean(axis=1, keepdims=True), 100 * kept, (left, top), cell, "cluster", unit,
        [name.replace(",", ";") for name in names],
    )  # fmt: skip
    for i, (cluster, name) in enumerate(zip(order, names, strict=True)):
        y, home = top + i * cell[1], int(traffic.layout.nodes[cluster])
        parts.append(svg.text(left - 8, y + cell[1] / 2 + 3.5, name, "label", "end"))
        x = left + home * cell[0]
        parts.append(svg.rect(x + 1, y + 1, cell[0] - 2, cell[1] - 2, "ring o6"))
    for node in heat.thinned(nodes, int(nodes * cell[0] // 20)):
        x = left + (node + 0.5) * cell[0]
        parts.append(svg.text(x, top - 5, str(node), "tick", "middle"))
    parts.append(svg.text(left, 13, f"{unit} →", "name"))
    parts.append(svg.text(left - 8, 13, "cluster: mostly", "name", "end"))
    homes = Counter(traffic.layout.nodes.tolist())
    words = "; ".join(f"{unit} {node}: {homes[node]} clusters" for node in range(nodes))
    size = (left + nodes * cell[0] + 8, top + len(order) * cell[1] + 8)
    return svg.picture(*size, "Home of each cluster", words, parts, "cluster-home-map")


def _mostly(profile: Profile, traffic: NodeTraffic, cluster: int, what: str, most: int = 3) -> str:
    rows = traffic.fitted[traffic.label == cluster].tolist()
    found = Counter(getattr(profile.requests[row], what) or "unlabelled" for row in rows)
    if most == 1:
        return found.most_common(1)[0][0]
    return ", ".join(f"{name} {n}" for name, n in found.most_common(most))


def _experts(profile: Profile, traffic: NodeTraffic) -> str:
    table, nodes = traffic.layout.placement.physical_to_logical, traffic.topology.nodes
    rows = [
        [str(layer), *(" ".join(map(str, sorted(part))) for part in row)]
        for layer, row in zip(
            profile.model.layers, table.reshape(len(table), nodes, -1).tolist(), strict=True
        )
    ]
    heads = ("Layer", *(f"{traffic.unit} {node}" for node in range(nodes)))
    made = html.table(
        "Logical experts, after; one that is named twice has replicas.", heads, rows, words=99
    )
    return html.details(f"Table: experts of each {traffic.unit}, by layer", made)
