"""What somebody else may have written: files and answers, read within bounds of size and depth.

A reader that recurses ends in RecursionError on text that is nested deeply, and one that unpacks
fills memory. Here both end in one sentence that says what is wrong.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    import numpy as np

MIB = 2**20
TEXT_MOST = 256 * MIB
"""Bytes of a file of JSON or of lines; profiles of the largest models have some ten MiB."""
YAML_MOST = MIB
ARRAYS_MOST = 16 * 1024 * MIB
DEPTH = 100
"""Levels of lists and mappings."""
NODES = 200_000
"""Values of a YAML document, each alias counted as what it stands for."""


class Unreadable(ToolkitError, ValueError):
    """The bounds are not kept; the message says which one, and callers say of what file."""


def read_bytes(path: Path, most: int = TEXT_MOST) -> bytes:
    """All of a file. OSError; Unreadable: it is larger than `most`, whatever its size says."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise Unreadable(f"it has more than {most / MIB:g} MiB")
    return data


def lines_of(file: IO[str], most: int = TEXT_MOST // 4) -> Iterator[str]:
    """The lines of an open file. Unreadable: one is longer than `most`."""
    while line := file.readline(most + 1):
        if len(line) > most:
            raise Unreadable(f"a line of it has more than {most / MIB:g} MiB")
        yield line


def read_text(path: Path, most: int = TEXT_MOST) -> str:
    """A text in UTF-8. OSError, UnicodeDecodeError, Unreadable."""
    return read_bytes(path, most).decode("utf-8")


def gunzip(data: bytes, most: int = TEXT_MOST) -> bytes:
    """What was packed. EOFError, OSError as `gzip`'s; Unreadable: it comes to more than `most`."""
    whole = b""
    while data:
        inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            whole += inflate.decompress(data, most + 1 - len(whole))
        except zlib.error as error:
            raise OSError(f"not gzip: {error}") from error
        if len(whole) > most:
            raise Unreadable(f"unpacked it has more than {most / MIB:g} MiB")
        if not inflate.eof:
            raise EOFError("the file ends too early")
        data = inflate.unused_data.lstrip(b"\0")
    return whole


def parse_json(text: str | bytes) -> Any:
    """The value. ValueError: no JSON; Unreadable: nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise Unreadable(_deep()) from None
    check_depth(value)
    return value


def read_json(path: Path, most: int = TEXT_MOST) -> Any:
    """The value in a file. OSError; ValueError as `parse_json`, `read_text`."""
    return parse_json(read_text(path, most))


def check_depth(value: Any) -> None:
    """Raise Unreadable when lists and mappings are nested deeper than DEPTH."""
    level = [value]
    for _ in range(DEPTH):
        inner: list[Any] = []
        for each in level:
            if type(each) is dict:
                inner += [x for x in each.values() if type(x) is dict or type(x) is list]
            elif type(each) is list:
                inner += [x for x in each if type(x) is dict or type(x) is list]
        if not inner:
            return
        level = inner
    raise Unreadable(_deep())


def check_yaml(text: str) -> None:
    """Raise Unreadable for a YAML text that is too large or too deep, or whose aliases stand for
    too much. yaml.YAMLError: it is none."""
    import yaml

    if len(text) > YAML_MOST:
        raise Unreadable(f"it has more than {YAML_MOST / MIB:g} MiB")
    sizes: dict[str, int] = {}
    open_: list[str | None] = []
    counts = [0]
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append(event.anchor)
            counts.append(1)
            if len(open_) > DEPTH:
                raise Unreadable(_deep())
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_.pop(), counts.pop()
            counts[-1] += size
            if anchor is not None:
                sizes[anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in open_:
                raise Unreadable(f"the alias *{event.anchor} stands inside what it stands for")
            counts[-1] += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            counts[-1] += 1
        if counts[-1] > NODES:
            raise Unreadable(f"its aliases stand for more than {NODES:,} values")


def load_yaml(text: str) -> Any:
    """The document. yaml.YAMLError: it is none; Unreadable as `check_yaml`."""
    import yaml

    check_yaml(text)
    return yaml.safe_load(text)


def read_arrays(path: Path, most: int = ARRAYS_MOST) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file. OSError; safetensors.SafetensorError; Unreadable."""
    from safetensors.numpy import load_file

    if path.stat().st_size > most:
        raise Unreadable(f"it has more than {most / MIB:g} MiB")
    result: dict[str, np.ndarray] = load_file(path)
    return result


def _deep() -> str:
    return f"it is nested more than {DEPTH} levels deep"
