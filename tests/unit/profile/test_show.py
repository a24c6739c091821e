"""Profiles on the terminal: all that matters is there, and differences say which model first."""

import io

import pytest
from rich.console import Console, RenderableType

from tests.unit.profile import sample
from tests.unit.profile.degenerate import degenerate
from toolkit.profile.diff import diff, differences
from toolkit.profile.show import show
from toolkit.report.numbers import change, number, percent, quantity, spark

PROFILE, _ = sample.build(sample.Size(requests=60))


def text(what: RenderableType, width: int = 120) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(what)
    return out.getvalue()


def test_show_has_every_part() -> None:
    words = text(show(PROFILE))
    for part in (
        "Profile of sample-moe", "6 MoE layers of 48, 4 a token", "SGLang 0.5.21", "imbalance",
        "Correlation of prefill and decode", "Strongest 1 % of expert pairs", "with mask", "▁",
        "in the order taken: ", "−19 %", "4 clusters of at most", "4.10 ms",
        "21.0 µs/distinct expert", "5.2 %", "mooncake", "11.2 GB/s", "EPLB (SGLang)", "0.880",
    ):  # fmt: skip
        assert part in words, part
    assert max(map(len, words.splitlines())) <= 120


def test_show_of_many_layers_is_short() -> None:
    size = sample.Size(requests=8, layers=58, experts=8, top_k=2, workers=2, gpus=2, nodes=1)
    words = text(show(sample.build(size)[0]))
    assert "..." in words
    assert len([x for x in words.splitlines() if " / " in x]) < 24


@pytest.mark.parametrize("kind", ["one layer", "bare", "undefined"])
def test_show_of_less(kind: str) -> None:
    words = text(show(degenerate(kind)[0]))
    assert "nan" not in words and "None" not in words


def test_markup_in_names_is_not_obeyed() -> None:
    setting = PROFILE.setting.model_copy(update={"note": "[red]alarm[/red]"})
    assert "[red]alarm[/red]" in text(show(PROFILE.model_copy(update={"setting": setting})))


def test_diff_of_the_same() -> None:
    assert text(diff(PROFILE, PROFILE)).strip() == "The profiles do not differ."


def test_diff_shows_only_what_differs() -> None:
    rho = PROFILE.rho.model_copy(update={"raw": 0.6})
    placed = PROFILE.placements[1].model_copy(update={"balance": 1.3})
    other = PROFILE.model_copy(
        update={"rho": rho, "transfer": None, "placements": (placed, *PROFILE.placements[2:])}
    )
    found = {row.name: row for row in differences(PROFILE, other)}
    assert list(found) == ["rho.raw", "transfer", "placements.linear", "placements.eplb.balance"]
    assert (found["rho.raw"].left, found["rho.raw"].right) == ("0.583", "0.600")
    assert found["rho.raw"].change == "+2.9 %"
    assert found["placements.eplb.balance"].change == "+25.0 %"
    assert (found["transfer"].left, found["transfer"].right) == ("there", "-")
    assert "different models" not in text(diff(PROFILE, other))


def test_diff_of_other_models_says_so_first() -> None:
    words = text(diff(PROFILE, sample.build()[0]))
    assert words.startswith("These are profiles of different models: sample-moe (6 MoE layers")
    model = PROFILE.model.model_copy(update={"fingerprint": "sha256:0"})
    words = text(diff(PROFILE, PROFILE.model_copy(update={"model": model})))
    assert "both sample-moe" in words and "fingerprints differ" in words


def test_numbers() -> None:
    assert [number(x) for x in (0.0, 1.0, 0.12345, 12345.6, 1e-7, None, float("nan"))] == [
        "0", "1.00", "0.123", "12,346", "1.00e-07", "–", "–",
    ]  # fmt: skip
    assert percent(0.1234) == "12.3 %"
    assert [change(*x) for x in ((0.8, 1.0), (1.2, 1.0), (1.0, 1.0), (None, 1.0), (1.0, 0.0))] == [
        "−20 %", "+20 %", "±0 %", "–", "–",
    ]  # fmt: skip
    assert quantity(2.1e-5, "s / distinct expert") == "21.0 µs/distinct expert"
    assert quantity(0.0041, "s") == "4.10 ms"
    assert quantity(3.0, "GB") == "3.00 GB"
    assert quantity(0.0, "s/token") == "0 s/token"
    assert spark([0.0, 0.5, 1.0]) == "▁▅█"
    assert spark([1.0, 1.0]) == "▁▁" and spark([]) == ""
