"""Links of the repository's own Markdown files; those of docs/pages mkdocs checks (`-s`)."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import markdown
import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = ROOT / "docs" / "pages"


class Page(HTMLParser):
    """What a Markdown file links to, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        extensions = ["tables", "fenced_code", "toc"]
        self.feed(markdown.markdown(path.read_text(encoding="utf-8"), extensions=extensions))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        for name in ("href", "src"):
            if (link := named.get(name)) is not None:
                self.links.append(link)
        if (anchor := named.get("id")) is not None:
            self.anchors.add(anchor)


def files() -> list[str]:
    """Markdown files of the checkout, the documentation's pages left out."""
    found = [
        path
        for path in ROOT.rglob("*.md")
        if not any(part.startswith(".") or part == "build" for part in path.relative_to(ROOT).parts)
    ]
    return sorted(str(path.relative_to(ROOT)) for path in found if PAGES not in path.parents)


def wrong(path: Path) -> list[str]:
    """Links of a file that lead nowhere. Other sites are not asked."""
    missing = []
    for link in Page(path).links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / parts.path).resolve() if parts.path else path
        there = target.exists()
        if there and parts.fragment and target.suffix == ".md":
            there = parts.fragment in Page(target).anchors
        if not there:
            missing.append(link)
    return missing


@pytest.mark.parametrize("name", files())
def test_every_link_leads_somewhere(name: str) -> None:
    assert wrong(ROOT / name) == []


def test_what_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A part\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md#a-part) [b](there.md#b) [c](gone.md) ![d](e.png) [f](#g)\n")
    assert wrong(page) == ["there.md#b", "gone.md", "e.png", "#g"]
