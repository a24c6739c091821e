"""`toolkit bench suite`: each system of a deployment against its strongest alternative."""
