"""The `clinit` command: every command in a file of its own, registered here."""

import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer
from rich.text import Text

from clinit.cli import cache, manifest, recipe
from clinit.cli.align import align
from clinit.cli.cache_import import import_
from clinit.cli.console import err
from clinit.cli.demo import demo
from clinit.cli.diagnose import diagnose
from clinit.cli.export import export
from clinit.cli.extract import extract
from clinit.cli.predict import predict
from clinit.cli.report import report
from clinit.cli.sweep import sweep
from clinit.cli.threads import set_thread_defaults
from clinit.cli.train_head import train_head
from clinit.cli.train_top import train_top
from clinit.errors import ClinitError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool | None) -> None:
    if wanted:
        from clinit import __version__

        typer.echo(f"clinit {__version__}")
        raise typer.Exit


@app.callback()
def clinit(
    version: Annotated[
        bool | None,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = None,
) -> None:
    """Data-driven initialisation of new classes for continual learning, on cached features.

    Start with `clinit demo`, or: `clinit extract`, `clinit train-head`, `clinit report`.
    """


app.command()(demo)
app.add_typer(manifest.app, name="manifest")
app.command()(extract)
cache.app.command("import")(import_)
app.add_typer(cache.app, name="cache")
app.command()(align)
app.command()(train_head)
app.command()(train_top)
app.command()(sweep)
app.add_typer(recipe.app, name="recipe")
app.command()(report)
app.command()(diagnose)
app.command()(export)
app.command()(predict)


class _Interrupted(BaseException):
    """Ctrl-C. Not KeyboardInterrupt, which typer turns into a silent exit."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise _Interrupted


def main() -> None:
    """Run the command line; print known errors without a traceback."""
    set_thread_defaults(os.environ)  # before anything loads PyTorch
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        app()
    except ClinitError as error:
        message = Text.assemble(("Error: ", "bold red"), f"{error}\n{error.remedy}")
        err.print(message, soft_wrap=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)  # whoever read the output has enough
    except OSError as error:  # such as a name that is too long
        err.print(Text.assemble(("Error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(1)
    except _Interrupted:
        err.print(Text("Interrupted. What was finished is kept: run the same command again."))
        sys.exit(130)
