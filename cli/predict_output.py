"""Predictions for programs: JSON, CSV and Parquet, one row per image and class.

Rows of features have the file of features and their number in it in place of the image.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clinit.words import printable

if TYPE_CHECKING:
    import polars as pl

    from clinit.headtrain.export.prediction import Prediction
    from clinit.headtrain.export.rejection import Rejection

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
