"""The deployment file, once: one nested model, of which the router's own file is a part.

Documents of keys, the JSON schema and the table of which key can act are made from it.
"""
