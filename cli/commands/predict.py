"""`clinit predict` and `clinit evaluate`: classify photographs or features, or measure a model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text

from clinit.cli.frame import model_source
from clinit.cli.frame.console import err, note, out, say, warn
from clinit.cli.frame.context import Context, given, refuse_idle
from clinit.cli.frame.options import AsJson, DeviceOption, Labels, described
from clinit.cli.frame.process import keeps
from clinit.cli.frame.progress import counting, doing, loading, training_progress
from clinit.cli.frame.results import print_content
from clinit.cli.frame.study_options import takes
from clinit.errors import ImageError
from clinit.extract.dataset.tree import HEIC_READER, HEIC_SUFFIXES
from clinit.files.lock import write_in_turn
from clinit.files.paths import exists
from clinit.headtrain.model.reading import Reading
from clinit.observer import Doing, Noted, Progressed
from clinit.setting import fields_of
from clinit.words import DIGEST_LETTERS, examples, number_of, printable, visible

if TYPE_CHECKING:
    from clinit.headtrain.model.evaluation import Evaluation, Questions
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
    model_source.check_model(model, images)
    if not any(map(exists, images)):
        from clinit.headtrain.model.predict import near

        remedy = near(images[0], "Give files or folders.")
        raise ImageError(f"nothing at {printable(images[0])}", remedy=remedy)
    model_source.check_file(csv, "csv")
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
        note(
            f"{sum(each.unknown for each in good):,} of {number_of(len(good), what)} unknown"
            f" ({below}: at most {100 * reject_rate:g} % of known {what}s score lower; `clinit"
            " evaluate`, with folders of other classes, counts the unknown ones that do)"
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


@keeps("No partial file is left: a file is written completely or not at all.")
@takes("reading", Reading)
def evaluate(
    context: Context,
    model: model_source.ModelArgument,
    images: Annotated[
        Path,
        typer.Argument(
            help="Folder of images: class folders named as the classes, or val/<class>; images in"
            " train/<class> are not used if val exists. Or features: a feature cache, or a file of"
            " arrays with labels."
        ),
    ],
    against: Annotated[
        Path | None,
        described("Another model to compare with.", "MODEL", "the parent of MODEL, if there"),
    ] = None,
    csv: Annotated[Path | None, described("Write a line per image into this .csv file.")] = None,
    html: Annotated[
        Path | None,
        described("Write a page into this .html file, with thumbnails of the worst pairs."),
    ] = None,
    as_json: AsJson = False,
    device: DeviceOption = "auto",
    labels: Labels = None,
    without: Annotated[
        Path | None,
        described("File that lists images to leave out: their paths below IMAGES, one per line."),
    ] = None,
    *,
    reading: Reading,
) -> None:
    """Measure a model on labelled images: accuracy, confusions, calibration, rejection.

    Folders that are not named as a class of the model are only used to measure
    rejection. Both MODEL and the model that it was made from, or --against OTHER,
    classify the same images. The result lists what was gained and lost in classes
    that both know, with McNemar's test, and how good the other classes are.

    clinit evaluate scenes-2/ photographs/ --html scenes-2.html
    """
    model_source.check_images(images)
    for path in filter(None, (model, against)):
        model_source.check_model(path, [images])
    written = {"csv": csv, "html": html}
    for kind, file in written.items():
        model_source.check_file(file, kind)
    from clinit.headtrain.model.evaluation import Questions, evaluate as evaluated
    from clinit.headtrain.model.model import load_model
    from clinit.headtrain.model.storage import parent_of

    with training_progress() as observe:
        asked = Questions.of(images, labels, observe, without)
        if asked.rows is not None:
            idle = dict.fromkeys((*fields_of(Reading), "without"), "has no effect on features")
            refuse_idle(context, idle)
        if against is None:
            against, gone = parent_of(model)
            if against is not None:
                observe(Noted(f"compared with its parent, {against}"))
            elif gone:
                observe(Noted(f"not compared with its parent, {gone}: gone (--against MODEL)"))
        observe(Doing("Loading the model …"))
        one = load_model(model, device=device)
        asked.check(one, observe)
        other = None if against is None else load_model(against, device=device)
        what, total = f"{asked.noun}s", len(asked.classes)
        reading = replace(
            reading,
            on_note=note,
            on_images=lambda done: observe(Progressed("Evaluating", done, total, what)),
        )
        found = evaluated(one, asked, reading, other)
    title = f"{model} on {images}" + f", against {against}" * (against is not None)
    _write_evaluation(found, title, asked, written)
    if as_json:
        content = {"model": str(model), "digest": one.facts.digest, "folder": str(images)}
        print_content(content | {"other": against and str(against)} | found.content)
    else:
        _show_evaluation(str(model), found)
    if bad := found.content["unreadable"]:
        told = examples([f"{each['image']}: {each['error']}" for each in bad])
        kind = number_of(len(asked.classes), asked.noun)
        warn(f"{len(bad):,} of {kind} cannot be read ({told})")
        raise typer.Exit(1)


def _write_evaluation(
    found: Evaluation, title: str, asked: Questions, files: dict[str, Path | None]
) -> None:
    if (csv := files["csv"]) is not None:
        write_in_turn(csv, found.table.write_csv)
    if (html := files["html"]) is not None:
        from clinit.analysis.page.page import save_page
        from clinit.analysis.page.photographs import evaluation_page

        root = asked.place if asked.rows is None else None
        save_page(
            html,
            lambda: evaluation_page(title, found, root, model_source.command_data()["command"]),
        )
    for file in filter(None, files.values()):
        note(f"written: {file}")


def _show_evaluation(model: str, found: Evaluation) -> None:
    from clinit.analysis.report.table import Column, Table
    from clinit.headtrain.model.evaluation import LISTED, cells_of

    for line in found.lines(model):
        say(line)
    for title, rows in found.tables.items():
        more = f", {LISTED} of {len(rows):,}" if len(rows) > LISTED else ""
        columns = [
            Column(name, "number" if kind.is_numeric() else "setting")
            for name, kind in rows.schema.items()
        ]
        out.print(Table(columns, [cells_of(rows.head(LISTED))], title=f"{title}{more}"))
