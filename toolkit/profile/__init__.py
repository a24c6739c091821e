"""Measure a model's experts on the hardware it will run on; fit centroids and placements."""
