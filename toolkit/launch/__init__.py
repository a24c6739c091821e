"""Start and supervise a deployment: one file in, running workers and a router out.

`deployment` (what the user wrote) -> `plan` (what will run) -> `checks` (is it possible) ->
`supervisor` (make it so, and leave nothing behind). From Python, `running.running(plan)` is all of
it as a context manager. Nothing heavy is imported here: the command line and the guard process
import this package.
"""
