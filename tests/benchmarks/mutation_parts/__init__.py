"""The parts of the benchmark `mutations`."""
