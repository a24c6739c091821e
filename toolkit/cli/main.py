"""`toolkit`: one typer app. Commands live one a file and import their machinery when called:
`toolkit --help` must stay under 0.3 s."""

import importlib
import sys

import typer

# rich_markup_mode=None keeps typer from importing rich for help texts and tracebacks.
app = typer.Typer(
    name="toolkit",
    help="Prefill/decode serving on SGLang: launch, route, measure.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

# name -> module:function. A module that is missing or broken only takes its own command away.
COMMANDS = {
    "demo": "toolkit.cli.demo:demo",
    "launch": "toolkit.cli.launch:launch",
    "recipes": "toolkit.cli.recipes:recipes",
    "status": "toolkit.cli.status:status",
    "stop": "toolkit.cli.stop:stop",
    "drain": "toolkit.cli.drain:drain",
    "restart": "toolkit.cli.restart:restart",
    "upgrade": "toolkit.cli.upgrade:app",
    "migrate": "toolkit.cli.migrate:migrate",
    "relocate": "toolkit.cli.relocate:relocate",
    "logs": "toolkit.cli.logs:logs",
    "doctor": "toolkit.cli.doctor:doctor",
    "bench": "toolkit.cli.bench:app",
    "router": "toolkit.cli.router:router",
    "profile": "toolkit.cli.profile:app",
    "simulate": "toolkit.cli.simulate:simulate",
    "plan": "toolkit.cli.plan:plan",
    "replay": "toolkit.cli.replay:replay",
}


def _register() -> None:
    for name, target in COMMANDS.items():
        module, function = target.split(":")
        try:
            command = getattr(importlib.import_module(module), function)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            continue
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)


@app.callback(invoke_without_command=True)
def _options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from toolkit import __version__

        print(__version__)
        raise typer.Exit


_register()


def main() -> None:
    """The console script. Known errors are printed without a traceback, exit status 1."""
    try:
        app()
    except Exception as error:
        from toolkit.errors import ToolkitError

        if not isinstance(error, ToolkitError):
            raise
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
