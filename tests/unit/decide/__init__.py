"""Tests of `toolkit.decide`."""
