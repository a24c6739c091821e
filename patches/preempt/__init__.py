"""Best-effort prefills give way to latency-sensitive requests, between two layers or two chunks."""
