"""Benchmarks: `.venv/bin/python -m tests.benchmarks.NAME [--quick]`. They report, never assert."""
