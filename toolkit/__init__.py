"""Prefill/decode serving on SGLang: launch, route, measure.

Only the version lives here: `python3 -m toolkit.setup` imports this file before
anything is installed, so it must need nothing but the standard library.
"""

__version__ = "0.1.0"
