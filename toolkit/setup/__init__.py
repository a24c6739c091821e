"""Sets the project up on a bare machine: standard library only, nothing installed yet.

`python3 -m toolkit.setup demo` and `python3 -m toolkit.setup test` are the two commands of the
README. Both first make `.venv` right (quick when it is already), then do their work with it.
"""
