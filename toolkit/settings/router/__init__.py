"""What the router can be told: by section `router` of a deployment file, and by its own file."""
