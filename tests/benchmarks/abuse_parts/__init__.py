"""The parts of the benchmark `abuse`."""
