"""Comments in a worker's stream of events that are for the router, beside the ids of tokens."""

LAST = "last"
"""`: last`, in front of a prefill worker's last answer to a request whose ids were asked for: what
follows is not its first token (`patches.pd.first_token`), which comes with its id."""
