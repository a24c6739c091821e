"""Which worker runs a request, and what follows from a failure. Pure: message in, orders out.

Nothing here has a clock, a socket or an event loop: whoever calls gives the time. The router, the
launcher, SGLang's DP controller (`patches.dp`), the replay and the tests run the same objects.
"""
