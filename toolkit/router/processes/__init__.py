"""A router of several processes: relays have the clients, one process decides.

The supervisor forks all of them. A relay has a data plane (`toolkit.router.data_plane`), the
decider process the control plane (`toolkit.router.control_plane`). Between them go the decider's
messages and orders over a Unix socket, and never a byte of a stream.
"""
