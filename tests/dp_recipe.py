"""launch/cpu-dp.yaml with the kinds of ranks that tests and benchmarks compare, and workers that
can hide lengths."""

import json
from pathlib import Path
from typing import Any

from toolkit.bench.ending import FLAG
from toolkit.resources import recipes_dir
from toolkit.settings.yaml_lines import read_document

RECIPE = recipes_dir() / "cpu-dp.yaml"


SETS: dict[str, dict[str, Any]] = {
    "attention": {"tp": 2, "dp": 2, "dp_attention": True},
    "attention4": {"tp": 4, "dp": 4, "dp_attention": True},
    "plain": {"tp": 1, "dp": 4, "dp_attention": False},
}


SLOTS = 32


RESERVED = 96
"""KV tokens kept free for each running request, in place of SGLang's 512: with those 32 requests a
rank do not fit in a pool of 16,384."""


PREFILL_KV = 65536
"""KV tokens of the prefill worker: it is never full of long prompts that wait for a rank."""


def recipe(kind: str, folder: Path, slots: int = SLOTS) -> Path:
    """The recipe with this kind of ranks, and workers that can hide lengths."""
    document, _ = read_document(RECIPE)
    ranks = SETS[kind]
    # With DP attention the limit is the server's, else each rank's.
    limit = slots * ranks["dp"] if ranks["dp_attention"] else slots
    document["decode"] |= ranks | {"max_running": limit}
    for role in ("prefill", "decode"):
        document[role].setdefault("args", {})[FLAG] = True
    document["decode"]["args"]["num-reserved-decode-tokens"] = RESERVED
    document["prefill"]["kv_tokens"] = PREFILL_KV
    path = folder / f"{kind}.yaml"
    path.write_text(json.dumps(document))  # JSON is YAML
    return path
