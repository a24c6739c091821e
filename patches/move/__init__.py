"""A decode worker sends a running request to another decode worker, and decodes on meanwhile.

`order` takes the router's order, `manager` is what sends, `outgoing` follows each move on the
source, `incoming` is the target's part.
"""
