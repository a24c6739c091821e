"""One try of a single request: what it decides, sends, relays and cleans up."""
