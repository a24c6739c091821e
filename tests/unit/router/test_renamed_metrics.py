"""Metrics under their old names, for one release."""

from pathlib import Path

from prometheus_client import Counter, generate_latest

from toolkit.router.collectors import PREFIX
from toolkit.router.renamed_metrics import OLD_NAMES, Registry

CHANGELOG = Path(__file__).parents[3] / "CHANGELOG.md"


def test_a_renamed_metric_is_given_under_both_names_and_others_under_one() -> None:
    registry = Registry()
    for name in ("kv_samples", "other"):
        Counter(PREFIX + name, name, ["rank"], registry=registry).labels("max").inc(3)
    text = generate_latest(registry).decode()
    assert 'toolkit_router_kv_samples_total{rank="max"} 3.0' in text
    assert 'toolkit_router_kv_looks_total{rank="max"} 3.0' in text
    assert "# HELP toolkit_router_kv_looks_total Deprecated: use toolkit_router_kv_samples." in text
    assert text.count('_total{rank="max"}') == 3


def test_the_changelog_lists_every_old_name_with_the_new_one() -> None:
    told = CHANGELOG.read_text()
    for new, old in OLD_NAMES.items():
        assert f"{PREFIX}{old}" in told and f"{PREFIX}{new}" in told
