"""HTTP headers of the toolkit's own, in lower case as they are compared."""

RUN = "x-toolkit-run"
"""Of an answer: the run whose router gave it. Of a request: the run for whose router it is."""
ATTEMPT = "x-toolkit-attempt"
"""Router to worker: how often this request was tried before, from 0."""
IDS = "x-toolkit-ids"
"""Router to worker, with value 1: put the ids of new output tokens into the answer, as comments
`: 17 4` in front of its events."""
CAPTURE = "x-toolkit-capture"
"""Client to router, with value 1: keep the experts of this request (`toolkit profile` sends it)."""
LABEL = "x-toolkit-label"
"""Client to router: a word for the class of the request; only `label_oracle` looks at it."""
