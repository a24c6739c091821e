"""Requests of one token: their prefill is all there is to do."""

HOST = "2.2.2.2"
"""As `bootstrap_host`: no decode worker will ask for the KV (SGLang's FAKE_BOOTSTRAP_HOST, with
which its own warm-up and health checks run on a prefill worker; nothing connects to it)."""
PATCH = "prefill_only"
"""What a prefill worker that answers such requests as a decode worker would lists among its
patches."""
