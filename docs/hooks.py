"""MkDocs calls this: puts the parts that come from the code into their pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs import reference  # noqa: E402  (the repository is not installed as a package here)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces each `<!-- generated: NAME -->` by what `reference.PARTS` makes of NAME."""
    return re.sub(r"<!-- generated: (\w+) -->", lambda mark: reference.PARTS[mark[1]](), markdown)
