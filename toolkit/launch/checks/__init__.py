"""What can be known of a deployment and its machine before a process starts."""
