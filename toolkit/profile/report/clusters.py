"""The requests in two dimensions, by domain and by language, and the clusters they fall into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from toolkit.profile.report import projection, tables
from toolkit.profile_folder.schema import Distinct, Profile
from toolkit.report import bars, html, svg
from toolkit.report.axes import Chart, around
from toolkit.report.numbers import MISSING, change, number, plural

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_LABELS = 8  # colours and signs that can be told apart; rarer labels become "other"
CLOSE = 0.2  # mutual information above which clusters are said to follow a label
UNKNOWN, OTHER = "unlabelled", "other"


def section(profile: Profile, arrays: Mapping[str, NDArray[Any]]) -> str:
    flat = projection.project(arrays, profile.rho.mask)
    cluster = arrays["cluster"][flat.rows]
    labels = {
        "domain": [r.domain or UNKNOWN for r in profile.requests],
        "language": [r.language or UNKNOWN for r in profile.requests],
    }
    figures = []
    for kind, every in labels.items():
        names = _ranked(every)
        drawn = [names.get(every[row], OTHER) for row in flat.rows]
        ids = [profile.requests[row].id for row in flat.rows]
        picture = _scatter(flat, cluster, drawn, list(dict.fromkeys(names.values())), ids, kind)
        figures.append(
            f'<div class="panel"><p class="panel-heading">By {kind}</p>'
            f"{_legend(list(dict.fromkeys(names.values())))}"
            f'<div class="frame">{picture}</div></div>'
        )
    sampled = (
        f" {len(flat.rows):,} of {len(profile.requests):,} requests are drawn."
        if len(flat.rows) < len(profile.requests)
        else ""
    )
    figure = html.raw_figure(
        "clusters",
        _takeaway(labels, arrays["cluster"]),
        "".join(figures),
        "Each sign is a request, placed by the first two principal components of its signature "
        "(masked layers, counts × IDF). Thin lines lead to the numbered middle of the cluster that "
        "the request was fitted into; held-out requests have no line." + sampled,
    )
    return html.section(
        "s-clusters",
        "Clusters, one for each decode worker",
        "",
        figure,
        '<div class="beside">',
        _distinct(profile.centroids.distinct, profile.model.experts),
        tables.centroids(profile),
        "</div>",
        _tables(profile, labels, arrays["cluster"]),
    )


def _ranked(labels: Sequence[str]) -> dict[str, str]:
    """label -> the name it is drawn under, most frequent first."""
    order = [name for name, _ in Counter(labels).most_common()]
    if len(order) <= MOST_LABELS:
        return {name: name for name in order}
    return {name: name if i < MOST_LABELS - 1 else OTHER for i, name in enumerate(order)}


def _legend(names: Sequence[str]) -> str:
    items = [
        (html.sign(f"mark c{i}", svg.MARKERS[i % len(svg.MARKERS)]), name)
        for i, name in enumerate(names)
    ]
    return html.legend(items)


def _scatter(
    flat: projection.Flat, cluster: NDArray[Any], drawn: Sequence[str], names: Sequence[str],
    ids: Sequence[str], kind: str,
) -> str:  # fmt: skip
    x, y = flat.points[:, 0].tolist(), flat.points[:, 1].tolist()
    chart = Chart(460, 400, around(x), around(y), left=10, right=10, top=10, bottom=34)
    spots = chart.points(x, y)
    badges = []
    for worker in range(int(cluster.max(initial=-1)) + 1):
        members = [spots[i] for i in (cluster == worker).nonzero()[0]]
        if not members:
            continue
        middle = (fmean(x for x, _ in members), fmean(y for _, y in members))
        rays = "".join(
            f"M{svg.at(middle[0])} {svg.at(middle[1])}L{svg.at(a)} {svg.at(b)}" for a, b in members
        )
        chart.add(f'<path class="ray" d="{rays}"/>')
        badges.append(svg.circle(*middle, 9.5, "badge"))
        badges.append(svg.text(middle[0], middle[1] + 4, str(worker), "badge-name", "middle"))
    for i, (spot, name) in enumerate(zip(spots, drawn, strict=True)):
        which = names.index(name)
        where = f"cluster {cluster[i]}" if cluster[i] >= 0 else "held out"
        chart.add(svg.marker(*spot, which, f"mark c{which}", f"{ids[i]}: {name}, {where}"))
    chart.add(*badges)
    words = [f"component {i + 1} ({100 * s:.0f} % of variance)" for i, s in enumerate(flat.shares)]
    floor = chart.height - 24
    chart.add(svg.line(10, floor, 450, floor, "axis"), svg.line(10, 10, 10, floor, "axis"))
    chart.add(svg.text(450, floor + 17, f"{words[0]} →", "name", "end"))
    chart.add(svg.text(16, 20, f"↑ {words[1]}", "name"))
    return chart.picture(
        f"Requests by signature, coloured by {kind}",
        f"{len(spots)} requests with {plural(len(names), kind)}, in {len(badges) // 2} clusters.",
        f"pca-{kind}",
    )


def _takeaway(labels: Mapping[str, Sequence[str]], cluster: NDArray[Any]) -> str:
    fitted = [int(i) for i in (cluster >= 0).nonzero()[0]]
    own = [int(cluster[i]) for i in fitted]
    shares = {
        kind: projection.mutual_information(own, [every[i] for i in fitted])
        for kind, every in labels.items()
        if len(set(every)) > 1
    }
    if not shares:
        return "Requests carry no labels; clusters follow their use of experts alone."
    first, *rest = sorted(shares, key=lambda kind: -shares[kind])
    values = f"normalised mutual information: {first} {shares[first]:.2f}"
    values += "".join(f", {kind} {shares[kind]:.2f}" for kind in rest)
    if shares[first] <= CLOSE:
        return f"Clusters follow no label closely ({values}): they are groups of expert use."
    more = f" more than the {rest[0]}" if rest else ""
    return f"Clusters follow the {first}{more} ({values})."


def distinct_rows(d: Distinct) -> list[tuple[str, float | None]]:
    """(how batches are put together, distinct experts a layer)."""
    return [
        ("random", d.random),
        ("one domain", d.by_domain),
        ("one language", d.by_language),
        ("one domain and language", d.by_cell),
        ("one cluster", d.clustered),
    ]


def _distinct(d: Distinct, experts: int) -> str:
    rows = [
        bars.Bar(
            name,
            value,
            MISSING if value is None
            else number(value) + ("" if name == "random" else f" ({change(value, d.random)})"),
            name == "one cluster",
        )
        for name, value in distinct_rows(d)
    ]  # fmt: skip
    takeaway = (
        "No cluster has enough held-out requests to fill a batch."
        if d.clustered is None
        else f"Batches of one cluster load {number(d.clustered)} distinct experts a layer, "
        f"{change(d.clustered, d.random)} against random batches."
    )
    words = "; ".join(f"{b.name}: {b.words}" for b in rows)
    drawn = bars.picture(rows, "Distinct experts in a batch", words, "distinct")
    return html.figure(
        "distinct-experts",
        takeaway,
        [html.Panel(drawn)],
        reading=f"Mean number of different experts (of {experts}) that one layer loads for a "
        f"decode batch of {d.batch} held-out requests, by how the batch is put together. A group "
        "too small to fill a batch shows no bar.",
    )


def _tables(profile: Profile, labels: Mapping[str, Sequence[str]], cluster: NDArray[Any]) -> str:
    c = profile.centroids
    columns = [(kind, name) for kind, every in labels.items() for name in sorted(set(every))]
    rows = []
    for worker in range(c.k):
        members = (cluster == worker).nonzero()[0]
        found = Counter((kind, every[i]) for kind, every in labels.items() for i in members)
        rows.append([str(worker), str(c.sizes[worker]), *(str(found[x]) for x in columns)])
    heads = ["Cluster", "Requests", *(name for _, name in columns)]
    crossed = html.table("Requests of each cluster by label (fitted ones).", heads, rows)
    return html.details(f"Table: labels of {plural(c.k, 'cluster')}", crossed)
