"""Parts of `tests.benchmarks.migrate`."""
