"""The router: its own process between clients and prefill/decode workers.

`python -m toolkit.router CONFIG.json` starts it; see `config.RouterConfig` for every field.
"""
