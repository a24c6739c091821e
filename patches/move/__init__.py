"""A decode worker sends a running request to another decode worker, and decodes on meanwhile.

`order` takes the router's orders, `manager` is what sends and `traffic` what it has sent, `copying`
is one move on its source, `outgoing` all of them, `held` what their clients do not get from there;
`incoming` is the target's part, `row` what it hears with the KV.
"""
