"""What a worker needs to compute on CPU, and to start quickly there."""
