"""Ranks inside one worker: how SGLang's DP controller chooses them, and what it knows of them."""
