"""Parts of the benchmark `hostile`."""
