"""What a router decides beside the policy's choice, pure: state and message in, decision out.

Nothing here has a clock, a socket or an event loop: whoever calls gives the time. The router, the
launcher, SGLang's DP controller (`patches.dp`), the replay and the tests run the same objects.
"""
