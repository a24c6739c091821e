"""Stand-ins for SGLang workers: the same HTTP surface, no model. For unit tests and benchmarks."""
