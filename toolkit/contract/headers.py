"""HTTP headers of the toolkit's own, in lower case as they are compared."""

RUN = "x-toolkit-run"
"""Of an answer: the run whose router gave it. Of a request: the run for whose router it is."""
ATTEMPT = "x-toolkit-attempt"
"""Router to worker: how often this request was tried before, from 0."""
IDS = "x-toolkit-ids"
"""Router to worker, with value 1: put the ids of new output tokens into the answer, as comments
`: 17 4` in front of its events."""
ROUTER = "x-toolkit-router"
"""Router to worker, with the request for its events: its name among those that send requests there,
the same over its decider's deaths."""
STEP_FRAMES = "x-toolkit-step-frames"
"""Router to worker: `RELAY NUMBER`, the frames into which the events of this stream may go, and its
number there. On an answer, with value 1: they do (`toolkit.contract.step_frames`)."""
CAPTURE = "x-toolkit-capture"
"""Client to router, with value 1: keep the experts of this request (`toolkit profile` sends it)."""
LABEL = "x-toolkit-label"
"""Client to router: a word for the class of the request; only `label_oracle` looks at it."""
CLASS = "x-toolkit-class"
"""Client to router: the request's class, a RequestClass value."""
REQUEST_ID = "x-request-id"
"""On every answer of the router, and of every request to a worker: the client's own word for its
request, or one that the router made (`toolkit.router.request_id`). It is for people and their logs:
nothing is found, aborted or moved by it."""
ROUTING_KEY = "x-smg-routing-key"
"""Client to router, and on to workers: where a request belongs (SGLang's own)."""

TO_WORKER = ("traceparent", "tracestate", ROUTING_KEY)
"""Headers of a client's request that go on to workers as they came. REQUEST_ID goes on, too, once
it is known to be sane. No other does: `Authorization` is the client's key for the router, and what
else SGLang reads in a header (`x-data-parallel-rank`, `x-sglext-*`) the router decides itself."""
RETRY_AFTER = "retry-after"
"""Seconds, or a date of HTTP."""
RETRY_AFTER_MS = "retry-after-ms"
"""What OpenAI's clients look at first."""
TO_CLIENT = (RETRY_AFTER, RETRY_AFTER_MS, "x-should-retry")
"""Headers of a worker's answer that go on to the client as they came. No other does: the router
frames the answer and knows its type."""
