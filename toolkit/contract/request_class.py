"""The class of a request: how long it may wait."""

from enum import StrEnum


class RequestClass(StrEnum):
    """Latency-sensitive requests may stop best-effort ones. A standard one waits as a
    latency-sensitive one does, is never stopped, and stops nobody."""

    LATENCY_SENSITIVE = "latency_sensitive"
    STANDARD = "standard"
    BEST_EFFORT = "best_effort"
