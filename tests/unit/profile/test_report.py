"""The report page: well formed, self-contained, small, right in both colour schemes."""

import re

import numpy as np
import pytest

from tests.unit.html_page import Page
from tests.unit.profile import sample
from tests.unit.profile.degenerate import degenerate
from toolkit.profile.report import render
from toolkit.report.style import COLOURS, CSS, luminance, text_inside

FIGURES = (
    "activations", "affinity", "correlation", "rho", "clusters", "distinct-experts", "steps",
    "placement", "placements", "transfer",
)  # fmt: skip
BUILT = sample.build(sample.Size(requests=60))
PAGE = render(*BUILT)


def test_well_formed() -> None:
    page = Page(PAGE)
    assert PAGE.startswith("<!DOCTYPE html>")
    assert ("html", "lang", "en") in page.attributes
    assert [name for name, n in page.ids.items() if n > 1] == []
    missing = [x for x in FIGURES if x not in page.ids]
    assert not missing


def test_pictures_have_names_and_descriptions() -> None:
    page = Page(PAGE)
    pictures = [svg for svg in page.svgs if svg.get("class") != "sign"]
    assert len(pictures) >= 15
    for svg in pictures:
        assert svg["role"] == "img"
        for name in svg["aria-labelledby"].split():
            assert page.ids[name] == 1
    for tag, name, value in page.attributes:
        if name == "href":
            assert tag == "a" and page.ids[value.removeprefix("#")] == 1
    scrolled = [
        value for _, name, value in page.attributes if name == "class" and "scroll" in value
    ]
    assert scrolled and PAGE.count('tabindex="0" role="region" aria-label=') == len(scrolled)


def test_nothing_from_elsewhere() -> None:
    page = Page(PAGE)
    assert not {"link", "img", "iframe", "object", "embed"} & {tag for tag, _, _ in page.attributes}
    assert all(name not in ("src", "srcset", "data") for _, name, _ in page.attributes)
    for sign in ("http:", "https:", "//", "url(", "@import", "fetch(", "XMLHttpRequest"):
        assert sign not in PAGE, sign


def test_takeaways_are_sentences_of_numbers() -> None:
    takeaways = re.findall(r'<p class="takeaway">(.*?)</p>', PAGE)
    assert len(takeaways) == len(FIGURES)
    for words in takeaways:
        assert words.endswith(".") and re.search(r"\d", words), words
        assert not re.search(r"nan|inf\b|None", words), words


def test_numbers_are_numbers() -> None:
    assert not re.search(r"\b(nan|inf|None)\b", " ".join(Page(PAGE).words))
    assert not re.search(r'="[^"]*\bnan\b', PAGE)


def test_the_same_profile_gives_the_same_page() -> None:
    assert render(*BUILT) == PAGE


def test_text_is_escaped() -> None:
    profile, arrays = sample.build()
    model = profile.model.model_copy(update={"name": '<script>alert("x")</script>&'})
    setting = profile.setting.model_copy(update={"note": "<b>note</b>"})
    request = profile.requests[0].model_copy(update={"id": "<i>", "domain": "a<b"})
    requests = (request, *profile.requests[1:])
    hostile = {"model": model, "setting": setting, "requests": requests}
    page = render(profile.model_copy(update=hostile), arrays)
    Page(page)
    assert "<script>alert" not in page and "<b>note" not in page and "<i>" not in page
    assert "a&lt;b" in page


@pytest.mark.slow
def test_largest_models_stay_small() -> None:
    few = sample.Size(requests=40, layers=58, experts=256, top_k=8, workers=16, gpus=64, nodes=8)
    profile, arrays = sample.build(few)
    times = 25  # 1,000 requests
    for name in ("prefill_counts", "decode_counts", "prompt_tokens", "output_tokens", "held_out"):
        arrays[name] = np.tile(arrays[name], (times,) + (1,) * (arrays[name].ndim - 1))
    arrays["cluster"] = np.tile(arrays["cluster"], times)
    requests = tuple(
        r.model_copy(update={"id": f"{r.id}-{i}"}) for i in range(times) for r in profile.requests
    )
    page = render(profile.model_copy(update={"requests": requests}), arrays)
    Page(page)
    assert len(page.encode()) < 3e6
    words = re.sub("<[^>]+>", "", page)
    assert "14,848 experts are counted in squares" in words
    assert "800 of 1,000 requests are drawn" in words
    assert "in three of the 57 gaps" in words


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "kind",
    ["one layer", "one worker", "bare", "undefined", "zero", "alike", "no requests held out",
     "many labels", "only linear"],
)  # fmt: skip
def test_degenerate_profiles_still_have_a_page(kind: str) -> None:
    page = render(*degenerate(kind))
    Page(page)
    assert not re.search(r"\b(nan|inf|None)\b", " ".join(Page(page).words))


def test_both_schemes_and_print() -> None:
    assert "@media (prefers-color-scheme:dark)" in CSS and "@media print" in CSS
    assert '<meta name="color-scheme" content="light dark">' in PAGE
    used = set(re.findall(r"var\(--([a-z]+\d*)\)", CSS)) - {"w"} - {f"t{i}" for i in range(8)}
    assert used <= COLOURS.keys()
    drawn = set(re.findall(r'class="[a-z ]*?\b([sdcoq]\d)\b', PAGE))
    assert {"s8", "d3", "c0", "o0"} <= drawn


def contrast(one: str, other: str) -> float:
    """WCAG's ratio, 1 to 21."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_contrast(scheme: int) -> None:
    colours = {name: pair[scheme] for name, pair in COLOURS.items()}
    for ground in ("ground", "raised"):
        for text in ("ink", "soft", "faint", "accent"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    marks = [x for x in colours if re.fullmatch(r"[co]\d|bar|axis|accent|s8", x)]
    for name in marks:
        assert contrast(colours[name], colours["ground"]) >= 3, name
    for name in (f"d{i}" for i in range(8)):
        assert contrast(text_inside(colours[name]), colours[name]) >= 4.5, name
    for name in ("c0", "c1", "c2"):  # names of lines
        assert contrast(colours[name], colours["ground"]) >= 4.5, name
    loads = [luminance(colours[f"s{i}"]) for i in range(1, 9)]
    assert loads == sorted(loads, reverse=scheme == 0)  # more load, further from the ground
    steps = [contrast(colours[f"s{i}"], colours[f"s{i + 1}"]) for i in range(1, 8)]
    assert min(steps) > 1.1
