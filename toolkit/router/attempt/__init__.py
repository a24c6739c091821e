"""One attempt of a sub-request: what it decides, sends, relays and cleans up."""
