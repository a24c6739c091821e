"""Mended faults put back, to see which the tests of a change catch."""
