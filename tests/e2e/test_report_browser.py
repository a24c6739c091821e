"""The report pages in a real browser: light and dark, wide and narrow, looked at by numbers.

Screenshots go to $TOOLKIT_SCREENSHOTS, or else to pytest's own temporary folder.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import browser
from tests.unit.bench import pages as bench_pages
from tests.unit.profile import sample
from tests.unit.simulate import pages
from toolkit.bench.page import write
from toolkit.profile.report import render

pytestmark = [pytest.mark.e2e, pytest.mark.touched("browser")]

WIDTHS, SCHEMES = (1280, 400), ("light", "dark")

# What a person would notice; each entry of the answer is one complaint.
LOOK = """(() => {
 const found = [], root = document.documentElement;
 if (root.scrollWidth > innerWidth) found.push(`page is ${root.scrollWidth} px wide`);
 const clipped = e => { const f = e.closest('.scroll'); return f && f.scrollWidth > f.clientWidth };
 for (const f of document.querySelectorAll('figure, .frame, section')) {
  const b = f.getBoundingClientRect();
  if (b.width < 100 || b.height < 60)
   found.push(`${f.id || f.className} is ${b.width} x ${b.height}`);
 }
 for (const s of document.querySelectorAll('.frame > svg')) {
  const b = s.getBoundingClientRect(), name = s.querySelector('title').textContent;
  if (b.width < 100 || b.height < 40) found.push(`${name} is ${b.width} x ${b.height}`);
  if (!clipped(s) && b.right > innerWidth + 1) found.push(`${name} ends at ${b.right}`);
  for (const t of s.querySelectorAll('text')) {
   const c = t.getBoundingClientRect();
   if (c.left < b.left - 12 || c.right > b.right + 12 || c.bottom > b.bottom + 4)
    found.push(`${name}: "${t.textContent}" leaves the picture`);
   if (c.height < 9) found.push(`${name}: "${t.textContent}" is ${c.height} px high`);
  }
  const marks = [...s.querySelectorAll('path, rect, circle')].map(x => x.getBoundingClientRect());
  if (!marks.some(x => x.width > 3 && x.height > 3)) found.push(`${name} draws nothing`);
 }
 if (innerWidth > 1200) for (const f of document.querySelectorAll('.scroll'))
  if (f.scrollWidth > f.clientWidth + 1) found.push(`${f.ariaLabel} does not fit`);
 for (const t of document.querySelectorAll('p, h1, h2, dd, dt, li, table'))
  if (!clipped(t) && !t.closest('details') && t.getBoundingClientRect().right > innerWidth + 1)
   found.push(`text ends at ${t.getBoundingClientRect().right}: ${t.textContent.slice(0, 40)}`);
 return found;
})()"""


@pytest.fixture(scope="module")
def program() -> str:
    found = browser.find()
    if found is None:
        words = f"no browser here: apt-get install {browser.PACKAGE}, or set TOOLKIT_BROWSER"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)
    return found


@pytest.fixture(scope="module")
def page(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    with browser.browser(program, tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.mark.parametrize("number", (58, 59, 60))
def test_the_browser_hears_us_whatever_the_numbers_of_its_pipes(
    program: str, tmp_path: Path, number: int
) -> None:
    """Other tests of the process leave files open; one number used to make the browser deaf."""
    held = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while held[-1] < number - 1:
            held.append(os.open(os.devnull, os.O_RDONLY))
        with browser.browser(program, tmp_path) as opened:
            assert opened.evaluate("1 + 1") == 2
    finally:
        for each in held:
            os.close(each)


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("TOOLKIT_SCREENSHOTS")
    folder = Path(given) if given else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(*sample.build(sample.Size())), "utf-8")
    return path


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_page(page: browser.Page, report: Path, screenshots: Path, width: int, scheme: str) -> None:
    page.open(report, width=width, dark=scheme == "dark")
    assert page.evaluate("innerWidth") == width
    assert page.evaluate(LOOK) == []
    assert page.evaluate("document.querySelectorAll('figure').length") == 10
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert ground == ("rgb(21, 22, 24)" if scheme == "dark" else "rgb(255, 255, 255)")
    assert page.requests() == [report.resolve().as_uri()]
    assert page.complaints() == []
    path = screenshots / f"report-{width}-{scheme}.png"
    page.screenshot(path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 50_000


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_simulation(
    page: browser.Page, tmp_path: Path, screenshots: Path, width: int, scheme: str
) -> None:
    path = tmp_path / "simulation.html"
    path.write_text(pages.page(), "utf-8")
    page.open(path, width=width, dark=scheme == "dark")
    assert page.evaluate(LOOK) == []
    assert page.evaluate("document.querySelectorAll('figure').length") == 4
    assert page.complaints() == []
    page.screenshot(screenshots / f"simulation-{width}-{scheme}.png")


BENCHES: dict[str, Callable[[], Any]] = {
    "comparison": bench_pages.compared,
    "three": lambda: bench_pages.compared(arms=3, rounds=24),
    "run": bench_pages.single,
    "talked": bench_pages.talked,
    "several": bench_pages.several,
    "swept": lambda: bench_pages.swept(arms=3),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", BENCHES)
def test_benchmark(
    page: browser.Page, tmp_path: Path, screenshots: Path, kind: str, scheme: str, width: int
) -> None:
    path = tmp_path / "bench.html"
    write(path, BENCHES[kind]())
    page.open(path, width=width, dark=scheme == "dark")
    assert page.evaluate(LOOK) == []
    assert page.evaluate("document.querySelectorAll('figure').length") >= 1
    assert page.requests() == [path.resolve().as_uri()]
    assert page.complaints() == []
    page.screenshot(screenshots / f"bench-{kind}-{width}-{scheme}.png")


def test_read_out_of_a_cell(page: browser.Page, report: Path) -> None:
    page.open(report, width=1280, dark=False)
    spot = page.evaluate(
        "(() => { const b = document.querySelector('[data-heat]').getBoundingClientRect();"
        "scrollTo(0, b.top - 100); const c = document.querySelector('[data-heat]')"
        ".getBoundingClientRect(); return [c.left + c.width * 10.5 / 48, c.top + c.height / 4] })()"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=spot[0], y=spot[1])
    said = page.evaluate("document.querySelector('#activations .readout').textContent")
    assert said.startswith("layer 1, expert 10: ")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=5, y=5)
    hint = page.evaluate("document.querySelector('#activations .readout').textContent")
    assert hint == "Point at a cell for its value."


def test_readable_without_script(page: browser.Page, report: Path) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(report, width=1280, dark=False)
        assert page.evaluate("document.querySelector('.readout').hidden") is True
        assert page.evaluate(LOOK) == []
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)


def test_prints(page: browser.Page, report: Path) -> None:
    """In print colours are the light ones, and no picture is wider than the sheet."""
    page.open(report, width=720, dark=True)
    page.call(
        "Emulation.setEmulatedMedia", media="print",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )  # fmt: skip
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    widths = page.evaluate(
        "[...document.querySelectorAll('.frame > svg')].map(s => s.getBoundingClientRect().right)"
    )
    assert max(widths) <= 720


def test_large_model(page: browser.Page, tmp_path: Path, screenshots: Path) -> None:
    size = sample.Size(requests=64, layers=58, experts=256, top_k=8, workers=16, gpus=64, nodes=8)
    path = tmp_path / "large.html"
    path.write_text(render(*sample.build(size)), "utf-8")
    for width in WIDTHS:
        page.open(path, width=width, dark=False)
        assert page.evaluate(LOOK) == []
        assert page.complaints() == []
        page.screenshot(screenshots / f"large-{width}.png")
