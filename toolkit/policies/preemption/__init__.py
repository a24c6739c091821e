"""When best-effort work stands aside for a latency-sensitive request.

A prefill of best-effort requests runs in slices of layers. At each boundary between two slices a
policy is asked whether it goes on or yields (`toolkit.policies.preemption.boundary`); what it may
not do to a request is bounded apart from it (`toolkit.policies.preemption.bounds`).
"""
