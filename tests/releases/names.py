"""Names of SGLang's that our code uses: attributes, keywords of calls, imports, flags.

Contracts cover the functions that patches hook and call. What hangs on objects (`req.extend_end`)
no contract sees: it is looked up when a request comes.
"""

import ast
from collections import defaultdict
from pathlib import Path

from tests.releases.source import Source

ROOT = Path(__file__).resolve().parents[2]
NOT_READ = ("cpu_stubs",)

KNOWN = {
    "chunked_req_to_exclude": "gone from 0.5.22: passed by place",
    "dest_tp_ranks": "gone from 0.5.22: move/outgoing looks whether a sender takes it",
    "extend_range": "gone from 0.5.22, extend_end there: early_send asks which it is",
    "match_prefix_for_req": "moved in 0.5.22: waiting_queue asks which it is",
    "include_req": "an argument of match_prefix_for_req",
    "_uses_write_through_cache": "from 0.5.21 on: early_send asks whether it is there",
    "get_max_transfer_tokens": "from 0.5.21 on: early_send asks whether it is there",
    "kv_checksum_computer": "from 0.5.21 on: early_send asks whether it is there",
    "disaggregation_enable_kv_checksum": "from 0.5.21 on: move asks whether it is there",
    "enable_pd_role_switch": "from 0.5.21 on: move asks whether it is there",
    "enable_host_receive": "from 0.5.21 on: host_receive asks whether it is there",
    "extend_end": "from 0.5.22 on: early_send asks whether it is there",
    "match_kv_cache": "from 0.5.22 on: waiting_queue asks which it is",
    "_make_abort_req": "not in 0.5.17, where answers never lack room to be paused",
    "cache_request_handle": "not in 0.5.17: prefill_only asks whether outcomes are there",
    "disagg_decode_prefix_len": "not in 0.5.17: written by early_send, and nobody reads it there",
    "get_model_config": "in 0.5.17 only: flags asks which it is",
    "rust_http_port": "not in 0.5.17: written by move, and nobody reads it there",
    "checkpoint": "from 0.5.22 on: prefill_only looks whether release_kv_cache takes it",
}
"""Names that some supported releases lack, and how the code gets on without them."""

NOT_SGLANGS = {
    *("JoinedStr", "_exit", "defstruct", "index_add_", "pauses", "previous_end", "progressed"),
    *("ledger", "ledgers", "token_hex", "visit"),
    *("POSSESSIVE_REPEAT", "_generated", "_reserve", "_side", "_stamp", "eventfd_read"),
    *("REPLAY", "_room", "in_flight", "mv"),
    *("eventfd_write", "locality", "new_ones", "readline", "residents", "set_inheritable", "tally"),
}
"""Our own names, or Python's, that stand in some releases by chance."""


def used(folder: str = "patches") -> dict[str, set[str]]:
    """Names that the code in a folder uses, and the files in which it does."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in sorted((ROOT / folder).rglob("*.py")):
        if any(part in NOT_READ for part in file.parts):
            continue
        for name in _names(ast.parse(file.read_text(encoding="utf-8"))):
            found[name].add(str(file.relative_to(ROOT)))
    return found


def _names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            names.add(node.arg)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang"):
            names.update(alias.name for alias in node.names)
    return names


def flags_used() -> dict[str, set[str]]:
    """What looks like the name of a flag or its field, in patches and toolkit."""
    found = used()
    for folder in ("patches", "toolkit"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found[node.value.replace("-", "_")].add(str(file.relative_to(ROOT)))
    return found


def vanished(one: Source, other: Source) -> dict[str, set[str]]:
    """Names that our patches use and that stand in `one` but nowhere in `other`, with our files."""
    there, gone = one.words(), other.words()
    found = {name: files for name, files in used().items() if name in there and name not in gone}
    return {name: found[name] for name in sorted(found) if name not in NOT_SGLANGS}
