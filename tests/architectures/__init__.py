"""The model architectures that users serve, each as a tiny model of random weights.

`configs` has their configurations, `checkpoints` writes one, `reference` says what a model's own
router picks, `python -m tests.architectures` tries all that the toolkit does on each.
"""
