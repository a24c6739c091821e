"""Experts that tokens were routed to: captured, kept beside the KV, summed into signatures."""
