"""Strict: a latency-sensitive request goes first, always."""

from toolkit.policies.preemption.boundary import Boundary, BoundaryChoice


class Strict:
    """Yield at the first boundary at which a latency-sensitive request waits.

    Formula: yield if anybody waits. Its wait is at most one slice, and those of its class before
    it. What best-effort work loses is bounded apart (`toolkit.policies.preemption.bounds`).
    No knobs. Source: QLLM, IV and Algorithm 1.
    """

    def __call__(self, state: Boundary) -> BoundaryChoice:
        return "yield" if state.urgent else "continue"
