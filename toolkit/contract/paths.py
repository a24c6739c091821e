"""What a patched worker answers beside SGLang's own endpoints."""

EVENTS = "/toolkit/events"
"""`toolkit.contract.events`, one JSON object a line (application/x-ndjson), for ever."""
EXPERTS = "/toolkit/experts"
"""`toolkit.contract.frames`, for ever; `?share=` in [0, 1]."""
STEP_FRAMES = "/toolkit/step-frames"
"""GET: `toolkit.contract.step_frames` for `?relay=`, for ever; without, what each relay has
(JSON). POST: a stream, named as in the header `x-toolkit-step-frames`, is to go on as the body of
its own answer."""
MOVE = "/toolkit/move"
"""POST on a decode worker: `toolkit.contract.move_orders`, of a request whose KV is sent to another
one (`patches.move`)."""
PLACEMENT = "/toolkit/placement"
"""GET: which expert lies in which slot of a worker; POST: put others there (`patches.relocate`)."""
NOTICES = "/toolkit/notices"
"""POST: `toolkit.contract.notices`, what a router tells others that listen to this worker. GET: how
many there were."""
