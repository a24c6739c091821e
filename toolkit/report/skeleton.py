"""The skeleton of a page."""

from collections.abc import Sequence

from toolkit.report.html import escape
from toolkit.report.style import CSS, SCRIPT


def document(
    title: str, head: str, contents: Sequence[tuple[str, str]], sections: Sequence[str], footer: str
) -> str:
    """One page. `contents`: (section's key, words); `head`, `sections` and `footer` are HTML."""
    listed = "".join(f'<li><a href="#{key}">{escape(words)}</a></li>' for key, words in contents)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body>"
        f"<header>{head}</header>"
        f'<nav aria-label="Contents"><ol>{listed}</ol></nav>'
        f"<main>{''.join(sections)}</main>"
        f"<footer>{footer}</footer>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def heading(
    kind: str, title: str, facts: str, keys: Sequence[tuple[str, str, str]], note: str = ""
) -> str:
    """The page's head: what kind of page, its title, one sentence, `note` (HTML), and (name, value,
    what it is) of its key figures."""
    tiles = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd>"
        f"<dd class=how>{escape(how)}</dd></div>"
        for name, value, how in keys
    )
    return (
        f'<p class="kind">{escape(kind)}</p><h1>{escape(title)}</h1>'
        f'<p class="facts">{escape(facts)}</p>{note}<dl class="keys">{tiles}</dl>'
    )
