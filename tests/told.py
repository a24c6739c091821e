"""What a client is told by an answer."""

import json
from typing import Any


def told(status: int, raw: bytes) -> tuple[int, str]:
    """Status and message of an answer; an error within a stream counts as the answer's."""
    if status != 200:
        return status, raw[:500].decode(errors="replace")
    for line in raw.split(b"\n"):
        if line.startswith(b"data: {") and b'"error"' in line:
            try:
                error: Any = json.loads(line[6:])["error"]
                return int(error.get("code") or 500), str(error.get("message"))[:500]
            except (ValueError, KeyError, AttributeError, TypeError):
                continue
    return 200, ""
