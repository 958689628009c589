"""Predictions on the terminal: a table of classes, and what could not be read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from clinit.cli.console import err, note, out, warn
from clinit.words import visible

if TYPE_CHECKING:
    from rich.table import Table

    from clinit.headtrain.export.prediction import Guess, Prediction

MOST_ROWS = 20
"""Rows of features in a table."""


def show(predictions: Sequence[Prediction], warning: str | None = None) -> None:
    """Print the likeliest classes of what could be read.

    Args:
        predictions: In their order; of rows of features the first ones are shown.
        warning: What to know of their probabilities.
    """
    good = [each for each in predictions if each.reason is None]
    if not good:
        return
    more = len(good) - MOST_ROWS if good[0].row is not None else 0
    shown = good[:MOST_ROWS] if more > 0 else good
    folder = _common_place(shown)
    above = _shown(good[0], None) if len(good) == 1 else _printable(folder or "")
    if above:
        out.print(Text(visible(above), style="bold"), soft_wrap=True)
    out.print(_table(shown, folder))
    if more > 0:
        note(f"{more:,} more rows: --csv FILE, --parquet FILE or --json have all of them")
    if warning is not None:
        note(warning)


def count_unknown(predictions: Sequence[Prediction]) -> str:
    """Return how many are of none of the classes, in words."""
    good = [each for each in predictions if each.reason is None]
    unknown = sum(each.unknown for each in good)
    return f"{unknown:,} of {len(good):,} {_kind(predictions)} unknown: their score is below "


def report_bad(predictions: Sequence[Prediction]) -> None:
    """Name what could not be read, with its reason.

    Raises:
        Exit: If there is some.
    """
    bad = [each for each in predictions if each.reason is not None]
    if not bad:
        return
    warn(f"{len(bad):,} of {len(predictions):,} {_kind(predictions)} cannot be read:")
    for prediction in bad:
        line = f"    {_shown(prediction, None)}: {prediction.reason}"
        err.print(Text(visible(line)), soft_wrap=True)
    raise typer.Exit(1)


def _kind(predictions: Sequence[Prediction]) -> str:
    return "images" if not predictions or predictions[0].row is None else "rows"


def _table(predictions: Sequence[Prediction], folder: str | None) -> Table:
    """Return a table with a line per class, below its image where there are several of both."""
    from rich import box
    from rich.table import Table

    kind = _kind(predictions).removesuffix("s")
    several = len(predictions) > 1
    below = several and max(len(each.guesses) for each in predictions) > 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    if several and not below:
        table.add_column(kind, overflow="fold")
    table.add_column(f"{kind} and its classes" if below else "class", overflow="fold")
    table.add_column("probability", justify="right", no_wrap=True)
    table.add_column("since", no_wrap=True)
    for prediction in predictions:
        image = Text(visible(_shown(prediction, folder)), style="bold" if below else "")
        if below:
            table.add_row(image)
        if prediction.unknown:
            name = Text(f"{'  ' * below}unknown (score {prediction.score:.4g})", style="yellow")
            table.add_row(*([image] if several and not below else []), name)
        for guess in () if prediction.unknown else prediction.guesses:
            cells = _cells(guess, indent=2 * below)
            table.add_row(*([image] if several and not below else []), *cells)
        if below and prediction is not predictions[-1]:
            table.add_row()
    return table


def _cells(guess: Guess, indent: int) -> tuple[Text, Text, Text]:
    name = Text.assemble(
        " " * indent,
        visible(guess.title),
        (f" ({visible(guess.name)})", "dim") if guess.title != guess.name else "",
    )
    since = Text(f"task {guess.task}", style="green") if guess.task else Text("base")
    return name, Text(f"{100 * guess.probability:.1f} %"), since


def _shown(prediction: Prediction, folder: str | None) -> str:
    """Return an image as a path from the folder, or a row of features by its number."""
    if prediction.row is None:
        return _printable(os.path.relpath(prediction.path, folder) if folder else prediction.path)
    row = f"row {prediction.row}"
    return row if folder == str(prediction.path) else f"{_printable(prediction.path)}, {row}"


def _common_place(predictions: Sequence[Prediction]) -> str | None:
    """Return the folder that all paths are in, as they were given, or the file of all rows."""
    paths = [each.path for each in predictions]
    if predictions[0].row is not None:
        return str(paths[0]) if len(set(paths)) == 1 else None
    try:
        return os.path.commonpath([path.parent for path in paths]) or None
    except ValueError:  # absolute and relative ones
        return None


def _printable(path: str | Path) -> str:
    from clinit.words import printable

    return printable(path)
