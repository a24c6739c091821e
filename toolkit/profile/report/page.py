"""The whole page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolkit.profile_folder.schema import Profile
from toolkit.report.html import escape
from toolkit.report.numbers import change, count, number, percent, plural
from toolkit.report.skeleton import document, heading

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from toolkit.profile.node_traffic import NodeTraffic

_CONTENTS = (
    ("s-activations", "Activations"),
    ("s-affinity", "Affinity"),
    ("s-correlation", "Prefill and decode"),
    ("s-rho", "Signatures"),
    ("s-clusters", "Clusters"),
    ("s-steps", "Latency"),
    ("s-placement", "Placement"),
    ("s-nodes", "Nodes"),
    ("s-transfer", "KV transfer"),
    ("s-setting", "Setting"),
)


def render(
    profile: Profile, arrays: Mapping[str, NDArray[Any]], traffic: NodeTraffic | None = None
) -> str:
    """The report of a profile: one HTML page that needs no network and no script. `traffic`:
    experts and requests on several nodes, shown where it is given.

    Large models are binned and sampled, and the page says where; it stays under 3 MB for 58
    layers of 256 experts and 1,000 requests. `arrays` are the ones that `store.read` gives.
    """
    from toolkit.profile.report import (
        activations,
        affinity,
        clusters,
        correlation,
        mask,
        nodes,
        placement,
        steps,
        tables,
        transfer,
    )
    from toolkit.report import html

    sections = [
        activations.section(profile, arrays),
        affinity.section(profile, arrays),
        correlation.section(profile, arrays),
        mask.section(profile),
        clusters.section(profile, arrays),
        steps.section(profile, arrays),
        placement.section(profile, arrays),
        *([] if traffic is None else [nodes.section(profile, traffic)]),
        transfer.section(profile, arrays),
        html.section("s-setting", "Model, machine and data", "", tables.setting(profile)),
    ]
    title = f"Expert profile of {profile.model.name}"
    footer = (
        f"Written by toolkit {escape(profile.setting.toolkit)}, profile schema "
        f"{profile.schema_version}. All arrays lie beside this page in arrays.safetensors."
    )
    contents = [entry for entry in _CONTENTS if traffic is not None or entry[0] != nodes.KEY]
    return document(title, _head(profile), contents, sections, footer)


def _head(profile: Profile) -> str:
    m, s, d = profile.model, profile.setting, profile.data
    facts = (
        f"{m.architecture}, {plural(len(m.layers), 'MoE layer')} of {count(m.experts)} experts, "
        f"{m.top_k} a token. Measured with SGLang {s.sglang} ({s.workers}) on {s.device}, "
        f"{plural(d.requests, 'request')}, {s.measured_at[:10]}."
    )
    note = f'<p class="note">{escape(s.note)}</p>' if s.note else ""
    return heading("Expert profile", m.name, facts, _key_figures(profile), note)


def _key_figures(profile: Profile) -> list[tuple[str, str, str]]:
    """(name, value, what it is), only of what this profile has."""
    from toolkit.profile.report.placement import chosen

    r, d = profile.rho, profile.centroids.distinct
    unseen = r.idf_masked_held_out
    found = [
        ("Prefill and decode", number(profile.correlation.model), "Pearson, use of experts"),
        (
            "Signature quality",
            number(unseen if unseen is not None else r.idf_masked),
            "rho on unseen requests" if unseen is not None else "rho",
        ),
        (
            "Distinct experts",
            change(d.clustered, d.random),
            f"clustered against random batches of {d.batch}",
        ),
        (
            "Strongest 1 % of pairs",
            percent(profile.affinity.top1_decode),
            f"of decode traffic; {percent(profile.affinity.top1_independent)} by chance",
        ),
    ]
    if fit := profile.latency.distinct or profile.latency.without_distinct:
        found.append(("Step-time model", percent(fit.held_out_error), "mean error on unseen steps"))
    base = next((p for p in profile.placements if p.kind == "linear"), None)
    if base and len(profile.placements) > 1:
        best = chosen(profile)
        found.append(
            ("Cross-GPU hops", change(best.gpu_cut, base.gpu_cut), "best placement against linear")
        )
    return found
