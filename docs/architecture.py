"""Two pictures of the architecture, drawn from the tree: who talks to whom, and the layers.

`python -m docs.architecture` writes both SVG files. The folders are looked up, and the layers are
those that the lint step holds (`[tool.importlinter]` in `pyproject.toml`), so a test can say when a
picture is older than the code.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "pages"
INK, SOFT, LINE = "#1f2933", "#52606d", "#00796b"
FILL = {"ours": "#e0f2f1", "sglang": "#fff3e0", "outside": "#eceff1"}
WIDTH = 860


class Box(NamedTuple):
    """A box: where it is (pixels), its title, the folders that it stands for, what it does."""

    x: int
    y: int
    width: int
    height: int
    title: str
    folders: tuple[str, ...]
    does: tuple[str, ...]
    kind: str = "ours"


class Arrow(NamedTuple):
    """From one point to another; `text` stands at `at`."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str
    at: tuple[int, int]


BOXES = (
    Box(20, 96, 120, 64, "client", (), ("OpenAI API", "or /generate"), "outside"),
    Box(
        220, 40, 420, 176, "router", ("toolkit/router",),
        ("checks requests, relays tokens,", "goes on elsewhere when a worker dies"),
    ),
    Box(
        238, 132, 384, 68, "policies", ("toolkit/policies",),
        ("pure objects: who gets the next request",),
    ),
    Box(
        220, 330, 190, 92, "prefill workers", ("patches",),
        ("SGLang and our patches:", "run the prompt, keep KV"), "sglang",
    ),
    Box(
        450, 330, 190, 92, "decode workers", ("patches",),
        ("SGLang and our patches:", "generate the answer"), "sglang",
    ),
    Box(
        700, 40, 140, 382, "launch", ("toolkit/launch",),
        ("one deployment file", "starts, watches,", "restarts and stops", "router and workers"),
    ),
)  # fmt: skip
ARROWS = (
    Arrow((140, 116), (220, 116), "request", (158, 108)),
    Arrow((220, 144), (140, 144), "tokens", (162, 158)),
    Arrow((280, 216), (280, 330), "1 prompt", (224, 262)),
    Arrow((330, 330), (330, 216), "2 prefill done,", (338, 290)),
    Arrow((500, 216), (500, 330), "3 same request", (412, 262)),
    Arrow((550, 330), (550, 216), "4 tokens", (558, 290)),
    Arrow((410, 376), (450, 376), "KV", (420, 368)),
    Arrow((700, 128), (640, 128), "", (0, 0)),
    Arrow((700, 376), (640, 376), "", (0, 0)),
)


def layers() -> list[list[str]]:
    """The packages of each layer, the highest first, as the import contract has them."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = told["tool"]["importlinter"]["contracts"]
    found = next(each["layers"] for each in contracts if each["type"] == "layers")
    return [[name.strip() for name in layer.split("|")] for layer in found]


def folder_of(package: str) -> Path:
    """The folder or the file of a package, which is there. ValueError: it is not."""
    path = ROOT / package.replace(".", "/")
    for each in (path, path.with_suffix(".py")):
        if each.exists():
            return each
    raise ValueError(f"the picture shows {package}, which is not in the tree")


def purpose(package: str) -> str:
    """The first paragraph of the package's docstring."""
    path = folder_of(package)
    source = path / "__init__.py" if path.is_dir() else path
    text = ast.get_docstring(ast.parse(source.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("`", "")


def serving() -> str:
    """Who talks to whom while requests are served."""
    for box in BOXES:
        for folder in box.folders:
            folder_of(folder)
    drawn = [_box(box) for box in BOXES] + [_arrow(arrow) for arrow in ARROWS]
    drawn.append(_text(338, 306, "expert signature", SOFT, 11))
    return _svg(442, "A client, the router with its policies, prefill and decode workers", drawn)


def layered() -> str:
    """The packages in layers: each imports only from layers below it."""
    drawn, y = [], 16
    for names in layers():
        width = (WIDTH - 40 - 12 * (len(names) - 1)) // len(names)
        for place, name in enumerate(names):
            x = 20 + place * (width + 12)
            drawn.append(_rectangle(x, y, width, 44, "ours"))
            drawn.append(_text(x + 12, y + 18, name.replace(".", "/"), INK, 13, bold=True))
            room = int((width - 24) / 5.6)
            drawn.append(_text(x + 12, y + 35, _cut(purpose(name), room), SOFT, 11))
        y += 56
    return _svg(y + 4, "The packages of toolkit in layers; imports go down only", drawn)


def _cut(text: str, room: int) -> str:
    """`text` in at most `room` letters, cut between two words."""
    if len(text) <= room:
        return text
    return text[: room - 1].rsplit(" ", 1)[0].rstrip(",.:;") + " …"


def _box(box: Box) -> str:
    parts = [_rectangle(box.x, box.y, box.width, box.height, box.kind)]
    parts.append(_text(box.x + 14, box.y + 22, box.title, INK, 15, bold=True))
    folder = " ".join(f"{folder}/" for folder in box.folders)
    if folder:
        wide = box.width > 200
        at = (box.x + box.width - 14, box.y + 22) if wide else (box.x + 14, box.y + 40)
        parts.append(_text(*at, folder, LINE, 11, anchor="end" if wide else "start"))
    top = box.y + (42 if not folder or box.width > 200 else 58)
    parts += [
        _text(box.x + 14, top + 16 * line, text, SOFT, 12) for line, text in enumerate(box.does)
    ]
    return "\n".join(parts)


def _rectangle(x: int, y: int, width: int, height: int, kind: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{FILL[kind]}"'
        f' stroke="{LINE if kind == "ours" else SOFT}"/>'
    )


def _text(
    x: int, y: int, text: str, colour: str, size: int, bold: bool = False, anchor: str = "start"
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" text-anchor="{anchor}"{weight}>'
        f"{escape(text)}</text>"
    )


def _arrow(arrow: Arrow) -> str:
    (x1, y1), (x2, y2) = arrow.start, arrow.end
    line = (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{SOFT}" stroke-width="1.5"'
        f' marker-end="url(#tip)"/>'
    )
    return f"{line}\n{_text(*arrow.at, arrow.text, SOFT, 11)}" if arrow.text else line


def _svg(height: int, title: str, drawn: list[str]) -> str:
    """A whole picture, on white so that it can be read on a dark page too."""
    tip = (
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
        f' orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{SOFT}"/></marker>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' font-family="system-ui, sans-serif">\n<title>{escape(title)}</title>\n'
        f'<defs>{tip}</defs>\n<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    )
    return "\n".join([head, *drawn, "</svg>", ""])


PICTURES = {"architecture.svg": serving, "layers.svg": layered}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (PAGES / name).write_text(draw())
