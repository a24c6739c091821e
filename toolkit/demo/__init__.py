"""The README's first command, once `.venv` is there: watch a real deployment answer."""
