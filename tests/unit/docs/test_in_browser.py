"""The site in a real browser: no name in a table is broken, no page is wider than its window."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import browser

ROOT = Path(__file__).resolve().parents[3]
PAGES = ("index", "path", "policies", "requests", "keys", "patches", "design/late-dispatch")
BROKEN = r"""(() => {
  const broken = [];
  for (const cell of document.querySelectorAll('td, th')) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const text = texts.currentNode;
      for (const word of text.data.matchAll(/[A-Za-z0-9_]+/g)) {
        const range = document.createRange();
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].map((each) => Math.round(each.top)));
        if (lines.size > 1) broken.push(word[0]);
      }
    }
  }
  return broken;
})()"""
TOO_WIDE = "document.documentElement.scrollWidth - window.innerWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-s", "-f", "docs/mkdocs.yml"]
    subprocess.run([*command, "-d", str(folder)], cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    program = browser.find()
    if program is None:
        pytest.skip(f"no browser here: apt-get install {browser.PACKAGE}, or set TOOLKIT_BROWSER")
    with browser.browser(program, tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_window_and_breaks_no_name(
    name: str, site: Path, page: browser.Page
) -> None:
    for width in (1280, 390):
        page.open(site / f"{name}.html", width=width, dark=False)
        assert page.evaluate(BROKEN) == [], f"{name} at {width} pixels"
        assert page.evaluate(TOO_WIDE) <= 0, f"{name} at {width} pixels"
        assert page.complaints() == []
