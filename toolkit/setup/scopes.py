"""How much of the tests a run has."""

from __future__ import annotations

SCOPE = "TOOLKIT_TEST_SCOPE"
"""In the environment of the tests: how much runs. Without it (plain pytest) every test does."""
FAST, DEFAULT, FULL = "fast", "default", "full"
"""`fast`: no process with SGLang, and nothing slow. `default`: without what takes long and rarely
breaks (tests marked `full`; kernels that this CPU takes by itself; parts that the change does not
touch: `toolkit.setup.touched`). `full`: everything."""
