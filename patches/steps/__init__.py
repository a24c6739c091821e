"""What forward steps and requests took."""
