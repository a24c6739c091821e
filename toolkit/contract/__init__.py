"""What passes between a worker and the rest: launcher, router, tools, and `patches` inside SGLang.

Every environment variable, header, path, field of a request and event on the wire is defined here,
once, with its type; both sides import it. `patches` imports this package, `toolkit.policies` and
`toolkit.signatures`, and nothing of the launcher or the router (`[tool.importlinter]`).

- `variables`: how the launcher tells a process what to do
- `headers`, `paths`: what requests and answers carry, and where they go
- `events`: what a worker says on its event stream, `frames`: what it says on its stream of experts
- `placement`: where it says that its experts lie
- `capturing`: under which of SGLang's settings captured experts are right
- `ticket`: what the toolkit itself asks in a request for a worker
- `stop_patterns`: which patterns of `stop_regex` are matched, and how; `stop_syntax`: in what words
- `waiting`: in which order a worker prefills what waits
- `run_id`: of which run a process is
"""

VERSION = 4
"""Of this contract, in every `hello`. Raise it whenever a side that does not know of a change would
misread the other; a field that is added with a default is no such change. Sides of different
versions refuse each other."""
