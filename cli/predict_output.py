"""Predictions for programs: JSON, CSV and Parquet, one row per image and class.

Rows of features have the file of features and their number in it in place of the image.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from clinit.cli.console import err, note, out, warn
from clinit.words import printable, visible

if TYPE_CHECKING:
    import polars as pl
    from rich.table import Table

    from clinit.headtrain.model.predict import Guess, Prediction, Rejection


COLUMNS = ("image", "rank", "class", "title", "probability", "task", "error")
"""Of a table: an image that cannot be read has one row, with its error."""
OF_FEATURES = ("features", "row")
"""In place of `image`, for rows of features."""
OF_REJECTION = ("score", "threshold", "unknown")
"""Further columns where images may be unknown."""


def json_of(prediction: Prediction, rejection: Rejection | None) -> dict[str, Any]:
    """Return a prediction as plain values."""
    found: dict[str, Any] = {**_place(prediction), "error": prediction.reason}
    if rejection is not None:
        found |= _rejected(prediction, rejection)
    classes = [
        {
            "class": guess.name,
            "title": guess.title,
            "probability": guess.probability,
            "task": guess.task,
        }
        for guess in prediction.guesses
    ]
    return {**found, "classes": classes}


def write_csv(
    predictions: Sequence[Prediction],
    path: Path,
    rejection: Rejection | None = None,
    *,
    of_features: bool = False,
) -> None:
    """Write predictions as a CSV file, atomically; what is not known is empty.

    Args:
        predictions: One per image, or per row of features; possibly none.
        path: The file.
        rejection: The rule by which some are unknown.
        of_features: Whether they are of features.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(
        text,
        _columns(rejection, of_features=of_features),
        lineterminator="\n",
        extrasaction="raise",
    )
    writer.writeheader()
    for row in _rows(predictions, rejection):
        shown = {"probability": "", **row}
        for name, digits in (("probability", 6), ("score", 8), ("threshold", 8)):
            if isinstance(value := row.get(name), float):
                shown[name] = f"{value:.{digits}g}"
        writer.writerow(shown)
    content = text.getvalue().encode()
    _commit(path, lambda draft: draft.write_bytes(content))


def write_parquet(
    predictions: Sequence[Prediction],
    path: Path,
    rejection: Rejection | None = None,
    *,
    of_features: bool = False,
) -> None:
    """Write predictions as a Parquet file, atomically; what is not known is null.

    Arguments as in `write_csv`.
    """
    frame = as_frame(predictions, rejection, of_features=of_features)
    _commit(path, frame.write_parquet)


def as_frame(
    predictions: Sequence[Prediction], rejection: Rejection | None, *, of_features: bool = False
) -> pl.DataFrame:
    """Return predictions as a table of typed columns."""
    import polars as pl

    types = {
        **{"features": pl.String, "row": pl.Int64},
        **{"image": pl.String, "rank": pl.Int64, "class": pl.String, "title": pl.String},
        **{"probability": pl.Float64, "task": pl.Int64, "error": pl.String},
        **{"score": pl.Float64, "threshold": pl.Float64, "unknown": pl.Boolean},
    }
    schema = {name: types[name] for name in _columns(rejection, of_features=of_features)}
    return pl.DataFrame(list(_rows(predictions, rejection)), schema=schema)


def _columns(rejection: Rejection | None, *, of_features: bool) -> tuple[str, ...]:
    columns = (*OF_FEATURES, *COLUMNS[1:]) if of_features else COLUMNS
    return columns if rejection is None else (*columns, *OF_REJECTION)


def _place(prediction: Prediction) -> dict[str, Any]:
    path = printable(prediction.path)
    if prediction.row is None:
        return {"image": path}
    return {"features": path, "row": prediction.row}


def _rows(
    predictions: Sequence[Prediction], rejection: Rejection | None
) -> Iterator[dict[str, Any]]:
    for prediction in predictions:
        image = _place(prediction)
        told = {} if rejection is None else _rejected(prediction, rejection)
        for rank, guess in enumerate(prediction.guesses, start=1):
            named = {"class": guess.name, "title": guess.title, "task": guess.task}
            yield {**image, "rank": rank, "probability": guess.probability, **named, **told}
        if prediction.reason is not None:
            yield {**image, "error": prediction.reason, **told}


def _rejected(prediction: Prediction, rejection: Rejection) -> dict[str, Any]:
    bad = prediction.reason is not None
    return {
        "score": prediction.score,
        "threshold": rejection.threshold,
        "unknown": None if bad else prediction.unknown,
    }


def _commit(path: Path, write: Any) -> None:
    from clinit.files.commit import commit_file
    from clinit.files.lock import claim_file

    with claim_file(path, on_busy=lambda: None):
        commit_file(path, write)


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
