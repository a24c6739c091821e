"""How a worker's processes come up beside those of other workers."""
