"""Searches, in the simulator, the settings of a deployment that serve given traffic best."""
