"""`clinit predict`: classify photographs with an exported model, or features with a head."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text

from clinit.cli.frame.console import err, note, out, say, warn
from clinit.cli.frame.context import Context, given, refuse_idle
from clinit.cli.frame.model_source import check_file, check_model
from clinit.cli.frame.options import AsJson, DeviceOption, described
from clinit.cli.frame.process import keeps
from clinit.cli.frame.progress import counting, doing, loading
from clinit.cli.frame.results import print_content
from clinit.cli.frame.study_options import takes
from clinit.errors import ImageError
from clinit.extract.dataset.tree import HEIC_READER, HEIC_SUFFIXES
from clinit.files.lock import write_in_turn
from clinit.files.paths import exists
from clinit.headtrain.model.reading import Reading
from clinit.setting import fields_of
from clinit.words import DIGEST_LETTERS, examples, number_of, printable, visible

if TYPE_CHECKING:
    from clinit.headtrain.model.facts import ModelFacts
    from clinit.headtrain.model.predict import Guess, Prediction, Rejection


RejectRule = Literal["auto", "energy", "max-logit", "probability"]
"""Score that decides whether an image belongs to none of the classes."""


@keeps("No partial file is left: the file is written completely or not at all.")
@takes("reading", Reading)
def predict(
    context: Context,
    model: Annotated[
        Path,
        typer.Argument(
            help="Model of `clinit export` or `clinit add`: its folder, or a file, .safetensors or"
            " .onnx. A head without a network, .npz or .safetensors, classifies rows of features."
        ),
    ],
    images: Annotated[
        list[Path],
        typer.Argument(
            help="Images, or folders with images. Or features: feature caches, or files .npy, .npz,"
            " .safetensors.",
            metavar="IMAGE...",
        ),
    ],
    top: Annotated[int, described("Classes per image.", min=1)] = 5,
    csv: Annotated[
        Path | None,
        described("Write a line per image and class into this .csv file; print no table.", "FILE"),
    ] = None,
    as_json: AsJson = False,
    reject: Annotated[
        RejectRule | None,
        described(
            "Call an image unknown if this score of its logits is too low; auto: the score that"
            " was best on the model's own images, else energy.",
            default="no rejection",
        ),
    ] = None,
    reject_rate: Annotated[
        float,
        described(
            "Share of images of known classes that may be rejected, measured on images that were"
            " held out or left out.",
            min=0,
            max=0.99,
        ),
    ] = 0.05,
    device: DeviceOption = "auto",
    *,
    reading: Reading,
) -> None:
    """Name the classes of images with a model: the likeliest classes of each.

    Images are transformed as when the model learnt. Classes that came later than
    the first ones are marked with the day when they were added, or the task of a
    run. With --reject, images that seem to belong to none of the classes are called
    unknown. Files that cannot be read are listed at the end with the reason, and
    the exit code is then 1. A head without a network names the classes of rows of
    features.
    """
    check_model(model, images)
    if not any(map(exists, images)):
        from clinit.headtrain.model.predict import near

        remedy = near(images[0], "Give files or folders.")
        raise ImageError(f"nothing at {printable(images[0])}", remedy=remedy)
    check_file(csv, "csv")
    with loading():
        from clinit.headtrain.model.inputs import features_in, is_features
        from clinit.headtrain.model.model import load_model
        from clinit.headtrain.model.predict import Rejection, find_images, predict as predicted
        from clinit.headtrain.model.storage import is_head_file

        kinds, of_features = [is_features(each) for each in images], is_features(images[0])
        if len({*kinds}) > 1:
            raise typer.BadParameter("give images or features, not both")
        _check_options(context, model, of_features=of_features, is_head=is_head_file(model))
        opened = load_model(model, device=device)
        rejection = None if reject is None else Rejection.at_rate(opened, reject, reject_rate)
    if of_features:
        what = "row"
        with doing("Naming rows …"):
            predictions = []
            for path in images:
                predictions += predicted(opened, features_in(path), top=top, reject=rejection)
    else:
        opened.need_engine()
        what, paths = "image", find_images(images, _note_left_out)
        with counting("images") as count:
            reading = replace(
                reading, on_note=note, on_images=lambda done: count("Predicting", done, len(paths))
            )
            predictions = predicted(opened, paths, top=top, reject=rejection, reading=reading)
    digest = opened.facts.digest[:DIGEST_LETTERS]
    content = [_content(each, rejection) | {"model": digest} for each in predictions]
    if csv is not None:
        columns = (*OF_FEATURES, *COLUMNS[1:]) if of_features else COLUMNS
        columns = (*columns, *(OF_REJECTION if rejection is not None else ()), "model")
        _write_table(content, csv, columns)
    good = [each for each in predictions if each.reason is None]
    if as_json:
        print_content(content)
    elif csv is not None:
        say(f"Wrote predictions of {number_of(len(predictions), what)} to {csv}")
    elif good:
        _show(good, what, opened.facts)
    if rejection is not None and not as_json:
        below = f"{rejection.rule} below {rejection.threshold:.6g}"
        more = ", perhaps far more of untested classes" if opened.facts.leaves_untested else ""
        note(
            f"{sum(each.unknown for each in good):,} of {number_of(len(good), what)} unknown"
            f" ({below}: at most {100 * reject_rate:g} % of tested {what}s score lower{more};"
            " `clinit evaluate`, with folders of other classes, counts the unknown ones that do)"
        )
    if bad := [each for each in predictions if each.reason is not None]:
        warn(f"{len(bad):,} of {number_of(len(predictions), what)} cannot be read:")
        for each in bad:
            err.print(Text(visible(f"    {_shown(each, None)}: {each.reason}")), soft_wrap=True)
        raise typer.Exit(1)


def _check_options(context: Context, model: Path, *, of_features: bool, is_head: bool) -> None:
    of_images = (*fields_of(Reading), *(["device"] if is_head else []))
    why = f"here: {model} is a head for features" if is_head else "here: features are given"
    idle = dict.fromkeys(of_images if of_features else (), why)
    if given(context, "reject") is None:
        idle["reject_rate"] = "without --reject"
    refuse_idle(context, {name: f"has no effect {why}" for name, why in idle.items()})


def _note_left_out(files: Sequence[str]) -> None:
    left_out = f"{number_of(len(files), 'file')} without an image's name left out"
    are_heic = any(each.lower().endswith(HEIC_SUFFIXES) for each in files)
    also = f"; {HEIC_READER} lets clinit read HEIC" if are_heic else ""
    note(f"{left_out} ({examples(files)}){also}")


COLUMNS = ("image", "rank", "class", "title", "probability", "task", "error")
"""Columns of a CSV file. An image that cannot be read has a single row, with its error."""
OF_FEATURES = ("features", "row")
"""Columns that replace `image` for rows of features."""
OF_REJECTION = ("score", "threshold", "unknown")
DIGITS = {"probability": 6, "score": 8, "threshold": 8}
"""Significant digits of columns of a CSV file."""
MOST_ROWS = 20
"""Maximum number of rows of features in a table on the terminal."""


def _content(prediction: Prediction, rejection: Rejection | None) -> dict[str, Any]:
    """Return a prediction for JSON: its image or row, and its score if there is a rule."""
    path = printable(prediction.path)
    is_row = prediction.row is not None
    place: dict[str, Any] = {"features": path, "row": prediction.row} if is_row else {"image": path}
    score: dict[str, Any] = {}
    if rejection is not None:
        unknown = None if prediction.reason is not None else prediction.unknown
        values = (prediction.score, rejection.threshold, unknown)
        score = dict(zip(OF_REJECTION, values, strict=True))
    classes = [
        {"class": each.name, **{name: getattr(each, name) for name in COLUMNS[3:6]}}
        for each in prediction.guesses
    ]
    return {**place, "error": prediction.reason, **score, "classes": classes}


def _write_table(content: Sequence[dict[str, Any]], path: Path, columns: Sequence[str]) -> None:
    """Write predictions as a CSV file, atomically; missing values are empty."""
    import polars as pl

    rows = []
    for each in content:
        classes = enumerate(each["classes"], start=1)
        lines = [each | guess | {"rank": rank} for rank, guess in classes]
        rows += lines or [{**each}]
    for row in rows:
        row |= {k: f"{row[k]:.{n}g}" for k, n in DIGITS.items() if row.get(k)}
    cells = [[None if row.get(key) is None else str(row[key]) for key in columns] for row in rows]
    table = pl.DataFrame(cells, dict.fromkeys(columns, pl.String), orient="row")
    write_in_turn(path, table.write_csv)  # it also quotes carriage returns in names


def _show(predictions: Sequence[Prediction], what: str, facts: ModelFacts) -> None:
    """Print a table with a line per class; the first line of each image names the image."""
    from clinit.analysis.report.table import Cells, Column, Table

    shown = predictions if what == "image" else predictions[:MOST_ROWS]
    several, folder = len(shown) > 1, _common_place(shown)
    if above := printable(folder or "") if several else _shown(shown[0], None):
        out.print(Text(visible(above), style="bold"), soft_wrap=True)
    lines: list[Cells] = []
    for prediction in shown:
        guesses: list[Cells] = [_cells(each, facts) for each in prediction.guesses]
        if prediction.unknown:
            score = Text(f"unknown (score {prediction.score:.4g})", style="yellow")
            guesses = [[score, "", ""]]
        for number, cells in enumerate(guesses):
            image = "" if number else _shortened(_shown(prediction, folder))
            lines.append([image, *cells] if several else cells)
    columns = [Column("class", "setting"), Column("probability", "number"), Column("since")]
    out.print(Table([*([Column(what, "setting")] if several else []), *columns], [lines]))
    if more := len(predictions) - len(shown):
        note(f"{number_of(more, 'more row')}: --csv FILE writes and --json prints all of them")
    if (warning := facts.caution) is not None:
        note(warning)


def _cells(guess: Guess, facts: ModelFacts) -> tuple[Text, ...]:
    other = (f" ({visible(guess.name)})", "dim") if guess.title != guess.name else ""
    since = Text(facts.since(guess.task), style="green" if guess.task else "")
    percent = Text(f"{100 * guess.probability:.1f} %")
    return Text.assemble(visible(guess.title), other), percent, since


def _shown(prediction: Prediction, folder: str | None) -> str:
    """Return the path of an image, relative to `folder`, or the number of a row of features."""
    if prediction.row is None:
        return printable(os.path.relpath(prediction.path, folder) if folder else prediction.path)
    row = f"row {prediction.row}"
    return row if folder == str(prediction.path) else f"{printable(prediction.path)}, {row}"


def _shortened(path: str) -> str:
    """Return a path that leaves room for classes, if need be without its middle."""
    width = max(28, out.width - 52)
    return path if len(path) <= width else f"{path[: width // 4]}…{path[width // 4 + 1 - width :]}"


def _common_place(predictions: Sequence[Prediction]) -> str | None:
    """Return the folder that contains all images, or the file that contains all rows, if any."""
    paths = [each.path for each in predictions]
    if predictions[0].row is not None:
        return str(paths[0]) if len(set(paths)) == 1 else None
    try:
        return os.path.commonpath([path.parent for path in paths]) or None
    except ValueError:  # absolute and relative paths are mixed
        return None
