"""Stages: decode ranks for ranges of lengths, and who is to move where (CascadeInfer)."""
