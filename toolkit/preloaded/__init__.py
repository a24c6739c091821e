"""One process that has imported what many others need, and forks each of them.

`server` runs in that process, `client` in the launcher that has started it. Neither knows what was
imported (`patches.preloaded` does). Linux only; standard library only, so that the forked process
finds nothing of the launcher's in its memory.
"""
