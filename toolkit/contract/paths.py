"""What a patched worker answers beside SGLang's own endpoints."""

EVENTS = "/toolkit/events"
"""`toolkit.contract.events`, one JSON object a line (application/x-ndjson), for ever."""
EXPERTS = "/toolkit/experts"
"""`toolkit.contract.frames`, for ever; `?share=` in [0, 1]."""
