"""ELDR in the router: a centroid for each decode worker, kept, followed and refitted."""
