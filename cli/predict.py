"""`clinit predict`: what an exported model sees in photographs, or a head in features."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from clinit.cli.completion import models
from clinit.cli.console import err, note, out, print_json, say, warn
from clinit.cli.context import Context, given
from clinit.cli.interruption import keeps
from clinit.cli.options import AsJson, DeviceOption, MaxPixels, Output, OutputFormat
from clinit.cli.progress import counting, doing
from clinit.cli.run_data import check_model
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.files.paths import check_writable
from clinit.words import examples, number_of, printable, visible

if TYPE_CHECKING:
    from rich.table import Table

    from clinit.headtrain.model.predict import Guess, Prediction, Rejection


class RejectRule(StrEnum):
    """What tells whether an image is of none of the classes."""

    energy = "energy"
    max_logit = "max-logit"


@keeps("No half of a file is left: it is written whole or not at all.")
def predict(
    context: Context,
    model: Annotated[
        Path,
        typer.Argument(
            help="Model of `clinit export`: its folder, or a file, .safetensors or .onnx. A head"
            " alone, .npz or .safetensors, names rows of features.",
            show_default=False,
            autocompletion=models,
        ),
    ],
    images: Annotated[
        list[Path],
        typer.Argument(
            help="Images, or folders to search for some; for a head, files of features: .npy, .npz,"
            " .safetensors, .parquet.",
            metavar="IMAGE...",
            show_default=False,
        ),
    ],
    top: Annotated[int, typer.Option(min=1, help="Classes per image.")] = 5,
    csv_file: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            help="Write a line per image and class into this .csv file, and print no table.",
            metavar="FILE",
            dir_okay=False,
        ),
    ] = None,
    parquet_file: Annotated[
        Path | None,
        typer.Option(
            "--parquet",
            help="The same into this .parquet file.",
            metavar="FILE",
            dir_okay=False,
        ),
    ] = None,
    output: OutputFormat = Output.table,
    as_json: AsJson = False,
    reject: Annotated[
        RejectRule | None,
        typer.Option(
            help="Call an image unknown if this score of its logits is too low.",
            show_default="no image is unknown",
        ),
    ] = None,
    reject_rate: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=0.99,
            help="Share of images of known classes that may be turned away, measured on images"
            " that the model has held out.",
            show_default="0.05",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Lowest score of a known image, instead of a share.", show_default=False),
    ] = None,
    features_name: Annotated[
        str | None,
        typer.Option(
            help="Which array, tensor or column holds features, for a head.",
            show_default="features",
        ),
    ] = None,
    device: DeviceOption = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per forward pass.")] = 64,
    max_pixels: MaxPixels = MAX_PIXELS,
) -> None:
    """Name what is in images, with an exported model: the likeliest classes of each.

    Images are prepared as they were when the features were extracted. Classes
    that the network has learnt after those of its base are marked with their
    task. With --reject, images of none of the classes are called unknown. A file
    that is not an image is reported with the reason at the end and does not
    affect the others; the exit code is then 1. A head without a network names the
    rows of files of features.
    """
    check_model(model, images)
    tables = {"csv": csv_file, "parquet": parquet_file}
    written = {kind: file for kind, file in tables.items() if file is not None}
    for kind, file in written.items():
        if file.suffix != f".{kind}":
            raise typer.BadParameter(f"--{kind} is the file to write, .{kind}, got {file}")
        check_writable(file, f"--{kind}")
    _check_rejection(reject, reject_rate, threshold)
    with doing("Loading the model …"):
        from clinit.extract.cache.head import read_head
        from clinit.headtrain.model.head_alone import (
            caution_of_head,
            is_head_file,
            predict_features,
        )
        from clinit.headtrain.model.model import Rule, open_predictor
        from clinit.headtrain.model.predict import find_images

        rate = 0.05 if reject_rate is None else reject_rate
        rule = None if reject is None else Rule(reject.value, rate, threshold)
        is_head = is_head_file(model)
        _refuse_options(context, model, is_head=is_head)
    if is_head:
        head = read_head(model)
        rejection, why = (None, "") if rule is None else rule.rejection(model, None)
        with doing("Naming rows …"):
            predictions = [
                each
                for file in images
                for each in predict_features(
                    head, file, top=top, features_name=features_name, reject=rejection
                )
            ]
        warning = caution_of_head(head)
    else:
        with doing("Loading the model …"):
            predictor, rejection, why = open_predictor(model, rule, device=device)
            paths = find_images(images, _note_left_out)
        with counting("images") as count:
            predictions = predictor.predict(
                paths,
                top=top,
                batch_size=batch_size,
                max_pixels=max_pixels,
                reject=rejection,
                on_images=lambda done: count("Predicting", done, len(paths)),
            )
        warning = predictor.facts.caution
    for file in written.values():
        write_table(predictions, file, rejection, of_features=is_head)
    if as_json := as_json or output is Output.json:
        found = [json_of(each, rejection) for each in predictions]
        print_json(json.dumps(found, ensure_ascii=False))
    elif written:
        kind = "rows" if is_head else "images"
        say(f"{len(predictions):,} {kind} at {' and '.join(map(str, written.values()))}")
    else:
        show(predictions, warning)
    if rejection is not None and not as_json:
        note(f"{count_unknown(predictions)}{rejection.threshold:.6g}{why}")
    report_bad(predictions)


def _check_rejection(
    reject: RejectRule | None, rate: float | None, threshold: float | None
) -> None:
    for option, value in (("--reject-rate", rate), ("--threshold", threshold)):
        if reject is None and value is not None:
            raise typer.BadParameter(f"{option} means nothing without --reject")
    if rate is not None and threshold is not None:
        raise typer.BadParameter("--reject-rate and --threshold exclude one another")
    if threshold is not None and not math.isfinite(threshold):
        raise typer.BadParameter(f"--threshold must be a finite number, got {threshold}")


def _refuse_options(context: Context, model: Path, *, is_head: bool) -> None:
    """Refuse options that mean nothing for this kind of model."""
    kind = "is a head of features" if is_head else "is a model of images"
    for name in ("device", "batch_size", "max_pixels") if is_head else ("features_name",):
        if given(context, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"{option} means nothing here: {model} {kind}")


def _note_left_out(files: Sequence[str]) -> None:
    left_out = f"{number_of(len(files), 'file')} left out, not images by their names"
    note(f"{left_out} ({examples(files)})")


COLUMNS = ("image", "rank", "class", "title", "probability", "task", "error")
"""Of a table: an image that cannot be read has one row, with its error."""
OF_FEATURES = ("features", "row")
"""In place of `image`, for rows of features."""
OF_REJECTION = ("score", "threshold", "unknown")
"""Further columns where images may be unknown."""
MOST_ROWS = 20
"""Rows of features in a table on the terminal."""


def json_of(prediction: Prediction, rejection: Rejection | None) -> dict[str, Any]:
    """Return a prediction as plain values."""
    place, score = _about(prediction, rejection)
    classes = [
        {
            "class": guess.name,
            "title": guess.title,
            "probability": guess.probability,
            "task": guess.task,
        }
        for guess in prediction.guesses
    ]
    return {**place, "error": prediction.reason, **score, "classes": classes}


def write_table(
    predictions: Sequence[Prediction],
    path: Path,
    rejection: Rejection | None = None,
    *,
    of_features: bool = False,
) -> None:
    """Write predictions as a CSV or Parquet file, atomically; what is not known is empty or null.

    Args:
        predictions: One per image, or per row of features; possibly none.
        path: The file; its name ends in .csv or .parquet.
        rejection: The rule by which some are unknown.
        of_features: Whether they are of features.
    """
    from clinit.files.commit import commit_file
    from clinit.files.lock import claim_file

    columns = (*OF_FEATURES, *COLUMNS[1:]) if of_features else COLUMNS
    columns = columns if rejection is None else (*columns, *OF_REJECTION)
    rows = list(_rows(predictions, rejection))
    content = _parquet(rows, columns) if path.suffix == ".parquet" else _csv(rows, columns)
    with claim_file(path, on_busy=lambda: None):
        commit_file(path, lambda draft: draft.write_bytes(content))


def _csv(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="raise")
    writer.writeheader()
    for row in rows:
        digits = {"probability": 6, "score": 8, "threshold": 8}
        floats = {name: row[name] for name in digits if isinstance(row.get(name), float)}
        writer.writerow({**row, **{n: f"{each:.{digits[n]}g}" for n, each in floats.items()}})
    return text.getvalue().encode()


def _parquet(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> bytes:
    import polars as pl

    types = {
        **dict.fromkeys(("row", "rank", "task"), pl.Int64),
        **dict.fromkeys(("probability", "score", "threshold"), pl.Float64),
        "unknown": pl.Boolean,
    }
    file = io.BytesIO()
    schema = {name: types.get(name, pl.String) for name in columns}
    pl.DataFrame(rows, schema=schema).write_parquet(file)
    return file.getvalue()


def _rows(
    predictions: Sequence[Prediction], rejection: Rejection | None
) -> Iterator[dict[str, Any]]:
    for prediction in predictions:
        place, score = _about(prediction, rejection)
        for rank, guess in enumerate(prediction.guesses, start=1):
            named = {"class": guess.name, "title": guess.title, "task": guess.task}
            yield {**place, "rank": rank, "probability": guess.probability, **named, **score}
        if prediction.reason is not None:
            yield {**place, "error": prediction.reason, **score}


def _about(
    prediction: Prediction, rejection: Rejection | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return which image or row a prediction is of, and whether it is unknown."""
    path, score = printable(prediction.path), {}
    of_image = prediction.row is None
    place = {"image": path} if of_image else {"features": path, "row": prediction.row}
    if rejection is not None:
        unknown = None if prediction.reason is not None else prediction.unknown
        values = (prediction.score, rejection.threshold, unknown)
        score = dict(zip(OF_REJECTION, values, strict=True))
    return place, score


def show(predictions: Sequence[Prediction], warning: str | None = None) -> None:
    """Print the likeliest classes of what could be read.

    Args:
        predictions: In their order; of rows of features the first ones are shown.
        warning: What to know of their probabilities.
    """
    good = [each for each in predictions if each.reason is None]
    if not good:
        return
    shown = good if good[0].row is None else good[:MOST_ROWS]
    folder = _common_place(shown)
    above = _shown(good[0], None) if len(good) == 1 else printable(folder or "")
    if above:
        out.print(Text(visible(above), style="bold"), soft_wrap=True)
    out.print(_table(shown, folder))
    if more := len(good) - len(shown):
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
    """Return a table with a line per class; the first line of several images names its image."""
    from rich import box
    from rich.table import Table

    several = len(predictions) > 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    if several:
        table.add_column(_kind(predictions).removesuffix("s"), overflow="fold", max_width=40)
    table.add_column("class", overflow="fold")
    table.add_column("probability", justify="right", no_wrap=True)
    table.add_column("since", no_wrap=True)
    for prediction in predictions:
        lines = [_cells(guess) for guess in prediction.guesses]
        if prediction.unknown:
            lines = [(Text(f"unknown (score {prediction.score:.4g})", style="yellow"),)]
        for number, line in enumerate(lines):
            image = "" if number else visible(_shown(prediction, folder))
            table.add_row(*([Text(image)] if several else []), *line)
    return table


def _cells(guess: Guess) -> tuple[Text, ...]:
    other = (f" ({visible(guess.name)})", "dim") if guess.title != guess.name else ""
    since = Text(f"task {guess.task}", style="green") if guess.task else Text("base")
    return (
        Text.assemble(visible(guess.title), other),
        Text(f"{100 * guess.probability:.1f} %"),
        since,
    )


def _shown(prediction: Prediction, folder: str | None) -> str:
    """Return an image as a path from the folder, or a row of features by its number."""
    if prediction.row is None:
        return printable(os.path.relpath(prediction.path, folder) if folder else prediction.path)
    row = f"row {prediction.row}"
    return row if folder == str(prediction.path) else f"{printable(prediction.path)}, {row}"


def _common_place(predictions: Sequence[Prediction]) -> str | None:
    """Return the folder that all paths are in, as they were given, or the file of all rows."""
    paths = [each.path for each in predictions]
    if predictions[0].row is not None:
        return str(paths[0]) if len(set(paths)) == 1 else None
    try:
        return os.path.commonpath([path.parent for path in paths]) or None
    except ValueError:  # absolute and relative ones
        return None
