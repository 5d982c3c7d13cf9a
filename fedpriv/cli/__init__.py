"""The command line: init, train, plan, resume, show, account, statement, budget, audit, claims, key, topology and more.

Each command imports what it uses when it is called, so that `fedpriv --help` and shell completion are fast.
"""

from __future__ import annotations

import errno
import gc
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedpriv import __version__
from fedpriv.cli import certifying, federating, federation_runs, operating, peering
from fedpriv.cli.commands import naming, privacy, reading, training

_OBJECTS_BETWEEN_COLLECTIONS = 10_000


class _Commands(TyperGroup):
    """Prints errors that fedpriv raises on purpose as one line, with exit code 2; other errors show a traceback."""

    def invoke(self, ctx: Any) -> object:  # noqa: ANN401 - typer brings its own click
        from fedpriv.cli.processes import should_report_errors
        from fedpriv.errors import FedprivError

        # freeze the objects of imported modules: a scan after every 700 new ones would take 10 % of a short command
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
        try:
            return self._invoke(ctx)
        except KeyboardInterrupt:  # a run in training handles it itself, and prints more
            raise typer.Exit(130) from None
        except BrokenPipeError:  # as in `fedpriv list | head`
            raise
        except FedprivError as error:
            if should_report_errors(error):
                text = str(error)
            else:
                text = ""  # another process prints it
        except OSError as error:
            if error.errno == errno.EIO and error.filename is None:  # the terminal was closed: there is no reader
                raise typer.Exit(129) from None
            text = f"{error.filename or 'a file'} cannot be read or written ({error.strerror})"
        from fedpriv.cli.printing import print_error

        if text:
            print_error(text)
        raise typer.Exit(2)

    def _invoke(self, ctx: Any) -> object:  # noqa: ANN401
        """Invokes a command; the error for an unknown option names the equivalent setting of fedpriv."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if type(error).__name__ == "NoSuchOption":  # of whichever version of click typer installs
                _suggest_setting(error)
            raise


def _suggest_setting(error: Any) -> None:  # noqa: ANN401 - click's
    """Adds the present name of a renamed option, or the equivalent setting, to the error for an unknown option."""
    from fedpriv.settings import renamed_option, setting_for_option

    parameters = error.ctx.command.params
    known = [option for parameter in parameters for option in parameter.opts]
    renamed = renamed_option(error.option_name, known)
    if renamed is not None:
        error.message = f"{error.message}; it is called {renamed}"
        error.possibilities = None
        return
    takes_settings = any(parameter.name == "overrides" for parameter in parameters)
    if takes_settings:
        setting = setting_for_option(error.option_name)
    else:
        setting = None
    if setting is not None:
        error.message = f"{error.message}; settings come after the file: write {setting}"
        error.possibilities = None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes around the help take longer to draw than importing everything else
)


def _print_version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"fedpriv {__version__}")
        raise typer.Exit


for module in (training, reading, privacy, naming):
    app.add_typer(module.commands)
for module in (federation_runs, certifying, operating):
    federating.site.add_typer(module.site)
    federating.federate.add_typer(module.federate)
federating.site.add_typer(peering.site)
app.add_typer(federating.site, name="site")
app.add_typer(federating.federate, name="federate")


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Differentially private federated learning. The printed epsilon is computed from all releases of a run."""
