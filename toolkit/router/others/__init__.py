"""Other routers over the same workers: what this one tells them, and what they ask."""
