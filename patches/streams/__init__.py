"""What a worker tells its router, over responses that do not end."""
