"""Addresses and URLs are put together and taken apart in one module."""

import ast
import re
from pathlib import Path

from toolkit.contract import addresses

ROOT = Path(__file__).parents[3]


def _by_hand(text: str) -> list[int]:
    """Lines that put an address or a URL together by hand: a value, a colon, another value."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.JoinedStr):
            continue
        shape = "".join(
            each.value if isinstance(each, ast.Constant) else f"{{{ast.unparse(each.value)}}}"  # type: ignore[attr-defined, misc]
            for each in node.values
        )
        host = r"\{[^{}]*(?:host|address|addr|reach|own|head|loopback)[^{}]*\}"
        if re.search(r"(?:https?|tcp)://\{", shape) or re.search(
            rf"{host}:\{{|\[{host}\]|://(?:127\.0\.0\.1|localhost):\{{", shape, re.IGNORECASE
        ):
            found.append(node.lineno)
    return found


def test_the_search_finds_what_it_is_for() -> None:
    for text in (
        'f"http://{host}:{port}"', 'f"http://{a}/x"', 'f"{self.host}:{self.port}"',
        'f"tcp://{a}:5"', 'f"[{host}]:80"', 'f"http://127.0.0.1:{port}"', 'f"{head}:{dist}"',
    ):  # fmt: skip
        assert _by_hand(text) == [1], text
    assert not _by_hand('f"worker {host} is up: {why}"')


def test_addresses_are_put_together_in_one_place_only() -> None:
    own = Path(addresses.__file__).resolve()
    files = [path for name in ("toolkit", "patches") for path in (ROOT / name).rglob("*.py")]
    assert own in files
    found = {
        str(path.relative_to(ROOT)): lines
        for path in files
        if path != own and (lines := _by_hand(path.read_text()))
    }
    assert not found, "use toolkit.contract.addresses"
    apart = [
        str(path.relative_to(ROOT))
        for path in files
        if path != own and re.search(r"\burl(?:split|parse)\b|\.netloc\b", path.read_text())
    ]
    assert not apart, "use toolkit.contract.addresses"
    cut = [path.name for path in files if path != own and '.rpartition(":")' in path.read_text()]
    assert cut == ["configured_workers.py"], (
        "use toolkit.contract.addresses (a rank's name is none)"
    )
