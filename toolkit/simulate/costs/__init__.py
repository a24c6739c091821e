"""What steps take: interchangeable models of hardware."""
