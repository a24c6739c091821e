"""One decision of four parts, each of which can be off: candidates, band, barrier, user."""
