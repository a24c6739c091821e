"""Environment variables by which a worker is told what its patches are to do."""

LAYERS_VARIABLE = "TOOLKIT_SIGNATURE_LAYERS"
"""Layers whose experts a prefill worker records, with commas between (`patches.signature`)."""
EARLY_PLACE_VARIABLE = "TOOLKIT_EARLY_PLACE"
"""Set: a decode rank takes in requests during a step (`patches.early_place`)."""
BACKGROUND_VARIABLE = "TOOLKIT_BACKGROUND"
"""Set: the scheduler's own thread steps back, on CPU (`patches.cpu_background`)."""
