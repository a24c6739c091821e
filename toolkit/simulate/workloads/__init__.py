"""Where simulated requests come from: recorded traces, and traffic made from distributions."""
