"""The `clinit` command and its table of sub-commands, which have a file each."""

import os
import sys
from collections.abc import Mapping
from typing import Annotated, ClassVar

import typer

from clinit.cli.frame.console import (
    hush,
    ignore_full_log,
    replace_what_cannot_be_printed,
    say,
    show_messages_of_libraries,
)
from clinit.cli.frame.failure import fail
from clinit.cli.frame.lazy_group import QUIET, LazyGroup
from clinit.cli.frame.process import (
    arrived,
    heed_signals,
    keep_freed_memory,
    raise_no_more,
    set_thread_defaults,
)


class Commands(LazyGroup):
    """The commands in the order of the help, each with the first sentence of its help."""

    table: ClassVar[Mapping[str, str]] = {
        "demo": "Run the whole pipeline on handwritten digits, offline, in about a minute.",
        "doctor": "Check what clinit needs: packages, GPU, CuPy, storage, limits.",
        "extract": "Run a frozen backbone once over a data set and store its penultimate features.",
        "head": "Fit and align heads on all rows of a cache.",
        "train-head": "Train heads on new classes that arrive in tasks, with a frozen backbone.",
        "train-top": "Train the top blocks of a backbone, and its head, on new classes that arrive"
        " in tasks.",
        "sweep": "Train every combination of a grid in banks of heads; resume an interrupted"
        " sweep.",
        "rerun": "Repeat a recorded run from its settings, and compare it with its record.",
        "report": "Print accuracies, loss and efficiency gain of runs, from their records only.",
        "reproduce": "Make tables of the paper and show them next to its numbers, with the"
        " differences and their reasons.",
        "diagnose": "Measure how far features and head have collapsed, and how far the head is"
        " from W_LS.",
        "export": "Write the trained classifier, backbone and head, as a model that plain timm"
        " loads.",
        "predict": "Classify images with an exported model: the likeliest classes of each.",
        "evaluate": "Measure a model on a folder of images: accuracy, confusions, calibration,"
        " rejection.",
        "add": "Add classes to a model, from a folder with a folder of images for each.",
        "remember": "Let a model remember its classes: no image, but their statistics.",
        "remove": "Remove classes from a model: their rows, and its memory of them.",
        "rename": "Give classes of a model other names.",
        "model": "Show a model, or merge two.",
        "manifest": "Build and show manifests of data sets.",
        "cache": "Show, verify, import, export and group feature caches.",
        "recipe": "Settings of the paper's tables and of the comparison of starts, for --config.",
    }


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help=QUIET)] = False,
) -> None:
    """Add classes to a pretrained image classifier; compare how new classes start and train.

    A model of your photographs: `clinit add`, `clinit predict`, `clinit evaluate`.
    Experiments: `clinit demo`, or `clinit extract`, `clinit train-head`, `clinit report`.
    """
    hush(wanted=quiet)


def main() -> None:
    """Run the command line; report errors and signals in words, without a traceback."""
    set_thread_defaults(os.environ)  # before anything loads PyTorch
    keep_freed_memory(os.environ)
    os.environ["MPLBACKEND"] = "agg"  # a notebook's backend exists only in its own process
    heed_signals()
    ignore_full_log()
    replace_what_cannot_be_printed()
    show_messages_of_libraries()
    try:
        code = app(standalone_mode=False)
        if (swallowed := arrived()) is not None:
            raise swallowed  # raise it again, because Python ignores exceptions within `__del__`
        raise_no_more()
    except BaseException as error:
        code = fail(error)
    sys.exit(code)
