"""The `clinit` command: every command in a file of its own, registered here."""

import os
import sys
from typing import Annotated

import typer

from clinit.cli import cache, manifest, recipe
from clinit.cli.align import align
from clinit.cli.cache_import import import_
from clinit.cli.console import say
from clinit.cli.demo import demo
from clinit.cli.diagnose import diagnose
from clinit.cli.encoding import replace_what_cannot_be_printed
from clinit.cli.export import export
from clinit.cli.extract import extract
from clinit.cli.failure import fail
from clinit.cli.interruption import arrived, heed_signals, raise_no_more
from clinit.cli.library_messages import show_messages_of_libraries
from clinit.cli.predict import predict
from clinit.cli.report import report
from clinit.cli.rerun import rerun
from clinit.cli.sweep import sweep
from clinit.cli.threads import set_thread_defaults
from clinit.cli.train_head import train_head
from clinit.cli.train_top import train_top

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool | None) -> None:
    if wanted:
        from clinit import __version__

        say(f"clinit {__version__}")
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

    Start with `clinit demo`, or: `clinit extract`, `clinit train-head`,
    `clinit report`.
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
app.command()(rerun)
app.add_typer(recipe.app, name="recipe")
app.command()(report)
app.command()(diagnose)
app.command()(export)
app.command()(predict)


def main() -> None:
    """Run the command line; whatever ends it is reported in words, without a traceback."""
    set_thread_defaults(os.environ)  # before anything loads PyTorch
    heed_signals()
    replace_what_cannot_be_printed()
    show_messages_of_libraries()
    try:
        code = app(standalone_mode=False)
        if (swallowed := arrived()) is not None:
            raise swallowed  # anew: Python ignores what a signal raises within `__del__`
        raise_no_more()
    except BaseException as error:
        code = fail(error, app)
    sys.exit(code)
