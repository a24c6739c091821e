"""A discrete-event simulator that runs the router's own policy objects at any scale."""
