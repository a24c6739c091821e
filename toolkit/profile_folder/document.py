"""The text of profile.json: the profile, and digests that tell whether somebody edited it.

    {"profile": {...}, "arrays_sha256": "...", "figures_sha256": "..."}

`arrays_sha256` is that of arrays.safetensors, so that arrays of another profile are noticed;
`figures_sha256` is that of every figure except the notes, which people may edit.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.bounded_files import parse_json
from toolkit.profile_folder.errors import ProfileError
from toolkit.profile_folder.schema import SCHEMA_VERSION, Profile

if TYPE_CHECKING:
    from pydantic import ValidationError

WIDTH = 100  # characters a line; lists of plain values are filled up to it
_KEYS = ("profile", "arrays_sha256", "figures_sha256")


@dataclass(frozen=True)
class Document:
    """A profile.json that was read and found whole. `arrays_sha256` is yet to be compared."""

    profile: Profile
    arrays_sha256: str


def text(profile: Profile, arrays_sha256: str) -> str:
    """profile.json of a profile.

    Raises:
        ProfileError: a figure is infinite or not a number.
    """
    data = profile.model_dump(mode="json")
    whole = {"profile": data, "arrays_sha256": arrays_sha256, "figures_sha256": _digest(data)}
    return _layout(whole, "") + "\n"


def parse(content: str, name: str) -> Document:
    """The profile in `content`; `name` is the file's, for messages.

    Raises:
        ProfileError: what is wrong with it and how to mend it.
    """
    try:
        whole = parse_json(content)
    except ValueError as error:
        raise ProfileError(
            f"{name} is not JSON ({error}): put the file back as `toolkit profile` wrote it"
        ) from error
    if not isinstance(whole, dict) or not isinstance(whole.get("profile"), dict):
        raise ProfileError(f"{name} is not a profile: it has no mapping under the key `profile`")
    _check_version(whole["profile"].get("schema_version"), name)
    unknown = [key for key in whole if key not in _KEYS]
    absent = [key for key in _KEYS if not isinstance(whole.get(key), (dict, str))]
    if unknown or absent:
        lines = [_unknown(key, list(_KEYS)) for key in unknown]
        lines += [f"key `{key}` is missing" for key in absent]
        raise ProfileError(f"{name}: " + "; ".join(lines))
    from pydantic import ValidationError

    try:
        profile = Profile.model_validate(whole["profile"])
    except ValidationError as error:
        raise ProfileError(f"{name}: " + "; ".join(_explain(error))) from error
    # Of the text as it is: a key that a later toolkit added has a default, and no digest yet.
    if _digest(whole["profile"]) != whole["figures_sha256"]:
        raise ProfileError(
            f"{name} was edited after it was written: its figures are no longer the measured "
            "ones. Put the old file back, or fit or measure again (notes may be edited freely)"
        )
    return Document(profile, whole["arrays_sha256"])


def _check_version(version: Any, name: str) -> None:
    if version == SCHEMA_VERSION:
        return
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise ProfileError(
            f"{name} has schema version {version}, this toolkit reads {SCHEMA_VERSION}: "
            "update the toolkit"
        )
    raise ProfileError(
        f"{name} has schema version {version!r}, this toolkit reads {SCHEMA_VERSION}: "
        "measure again with `toolkit profile`"
    )


def _digest(data: dict[str, Any]) -> str:
    try:
        canonical = json.dumps(_without_notes(data), sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise ProfileError(
            f"a figure of the profile is infinite or not a number: {', '.join(_odd(data))}"
        ) from error
    return hashlib.sha256(canonical.encode()).hexdigest()


def _without_notes(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_notes(x) for key, x in value.items() if key != "note"}
    return [_without_notes(x) for x in value] if isinstance(value, list) else value


def _odd(value: Any, at: str = "") -> list[str]:
    """Where in the data infinities and NaNs stand."""
    if isinstance(value, dict):
        return [x for key, y in value.items() for x in _odd(y, f"{at}.{key}" if at else key)]
    if isinstance(value, list):
        return [x for i, y in enumerate(value) for x in _odd(y, f"{at}[{i}]")]
    return [at] if isinstance(value, float) and (value != value or abs(value) == 1e999) else []


def _explain(error: ValidationError) -> list[str]:
    """Each problem in plain words, with the nearest key for an unknown one."""
    result = []
    for item in error.errors():
        location = item["loc"]
        if item["type"] == "extra_forbidden":
            result.append(_unknown(str(location[-1]), _fields(location[:-1]), location[:-1]))
        elif item["type"] == "missing":
            result.append(f"key `{_path(location)}` is missing")
        else:
            result.append(f"`{_path(location)}`: {item['msg']}")
    return result


def _unknown(key: str, known: list[str], at: tuple[int | str, ...] = ()) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(known)}"
    return f"unknown key `{_path((*at, key))}`: {hint}"


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)


def _fields(location: tuple[int | str, ...]) -> list[str]:
    """Keys that the model at `location` has, found through the annotations."""
    from typing import get_args

    from pydantic import BaseModel

    model: type[BaseModel] = Profile
    for part in location:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *get_args(annotation)]
        model = next(x for x in candidates if isinstance(x, type) and issubclass(x, BaseModel))
    return list(model.model_fields)


def _layout(value: Any, indent: str) -> str:
    """JSON for people: a value on one line where it fits, plain lists filled line by line."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(flat) <= WIDTH or not isinstance(value, (dict, list)) or not value:
        return flat
    inner = indent + "  "
    if isinstance(value, dict):
        rows = [f"{json.dumps(k)}: {_layout(v, inner)}" for k, v in value.items()]
        return "{\n" + ",\n".join(inner + row for row in rows) + f"\n{indent}}}"
    if any(isinstance(x, (dict, list)) for x in value):
        return "[\n" + ",\n".join(inner + _layout(x, inner) for x in value) + f"\n{indent}]"
    lines, line = [], ""
    for item in (json.dumps(x, ensure_ascii=False) for x in value):
        if line and len(inner) + len(line) + len(item) + 3 > WIDTH:
            lines.append(inner + line)
            line = item
        else:
            line = f"{line}, {item}" if line else item
    return "[\n" + ",\n".join([*lines, inner + line]) + f"\n{indent}]"
