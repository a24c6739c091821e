"""Defaults that depend on the device: what is not told here is the same on both.

The reasons are those of `toolkit.launch.wait_limits`.
"""

CUDA: dict[str, float] = {
    "silent_s": 5.0,
    "hung_s": 30.0,
    "idle_timeout_s": 120.0,
    "stuck_s": 20.0,
    "announced_s": 300.0,
}
"""Seconds. The models' own defaults, with which a router runs that no launcher started, are those
of a CPU."""
