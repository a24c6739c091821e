"""Experts that move while a worker serves: the order from HTTP, and what each rank does."""
