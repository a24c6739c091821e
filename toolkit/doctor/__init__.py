"""What this machine can run and what is missing, in plain words."""
