"""Change one key of a YAML file and nothing else: comments, order and style stay."""

from collections.abc import Sequence
from typing import Any

from toolkit.bounded_files import Unreadable, load_yaml
from toolkit.launch.errors import LaunchError, Problem


def with_key(text: str, section: str, key: str, value: Any, name: str = "the file") -> str:
    """`text` with `section: {key: value}`; the value is written in flow style on one line. Where it
    is a mapping and the section has one there already, its keys are changed one by one.

    LaunchError: not a YAML mapping, or one that this cannot change without harm (an anchor, say),
    which is seen by reading the result again.
    """
    import yaml

    flow = _flow(value)
    try:
        before = load_yaml(text) or {}
    except (yaml.YAMLError, Unreadable) as error:
        raise LaunchError([Problem(name, f"not valid YAML: {error}")]) from error
    inner = before.get(section) if isinstance(before, dict) else 0
    if not isinstance(inner, dict | None):
        what = f"{section} must be a mapping to hold {key}"
        raise LaunchError([Problem(name, what, "write key: value lines")])
    old = (inner or {}).get(key)
    if isinstance(value, dict) and isinstance(old, dict) and old and not old.keys() - value.keys():
        changed = text
        for each in value:
            if each not in old or old[each] != value[each]:
                changed = _changed(changed, (section, key), each, _flow(value[each]))
    else:
        changed = _changed(text, (section,), key, flow)
    try:
        after = load_yaml(changed)
    except (yaml.YAMLError, Unreadable):
        after = None
    if after != {**before, section: {**(inner or {}), key: value}}:
        repair = f"write it there yourself: {section}: {{{key}: {flow}}}"
        raise LaunchError([Problem(name, f"{key} cannot be put into {section} by itself", repair)])
    return changed


def _flow(value: Any) -> str:
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return str(text).strip().removesuffix("\n...")


def _changed(text: str, sections: Sequence[str], key: str, flow: str) -> str:
    """Of several sections, each in the one before, all but the first are there."""
    import yaml

    inner = yaml.SafeLoader(text).get_single_node()
    for section in sections:
        there = _find(inner, section) if inner is not None else None
        if there is None:
            line = "" if not text or text.endswith("\n") else "\n"
            return f"{text}{line}{section}:\n  {key}: {flow}\n"
        name, inner = there
    if inner.id != "mapping":  # nothing after the colon
        end = _colon(text, name)
        return f"{text[:end]}\n  {key}: {flow}{text[end:]}"
    old = _find(inner, key)
    if old is not None:
        start = _colon(text, old[0])
        return f"{text[:start]} {flow}{text[max(start, _end(old[1])) :]}"
    if inner.flow_style:
        at = inner.start_mark.index + 1
        return f"{text[:at]}{key}: {flow}{', ' * bool(inner.value)}{text[at:]}"
    first = inner.value[0][0].start_mark
    return f"{text[: first.index]}{key}: {flow}\n{' ' * first.column}{text[first.index :]}"


def _find(mapping: Any, key: str) -> Any:
    """The nodes of a key and of its value; None without it."""
    return next((pair for pair in mapping.value if pair[0].value == key), None)


def _colon(text: str, key: Any) -> int:
    """Where the text goes on after a key and its colon."""
    return text.index(":", key.end_mark.index) + 1


def _end(node: Any) -> int:
    """Where a value's own text ends: a block's node ends at the next key, comments included."""
    if node.id == "scalar" or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if node.id == "mapping" else last)
