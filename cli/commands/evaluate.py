"""`clinit evaluate`: measure a model on labelled images, alone or against another model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.frame.console import note, out, say, warn
from clinit.cli.frame.interruption import keeps
from clinit.cli.frame.model_source import (
    ModelArgument,
    check_file,
    check_images,
    check_model,
    listener,
    save_csv,
)
from clinit.cli.frame.options import AsJson, DeviceOption, Labels, described
from clinit.cli.frame.progress import counting, loading
from clinit.cli.frame.results import print_content
from clinit.extract.dataset.names import in_words
from clinit.words import examples, number_of

if TYPE_CHECKING:
    from clinit.headtrain.model.evaluation import Evaluation, Questions

MOST_LINES = 10


@keeps("No partial file is left: a file is written completely or not at all.")
def evaluate(
    model: ModelArgument,
    images: Annotated[
        Path,
        typer.Argument(
            help="Folder of images: class folders named as the classes, or val/<class>; images in"
            " train/<class> are not used if val exists. Or features: a feature cache, or a file of"
            " arrays with labels."
        ),
    ],
    against: Annotated[
        Path | None, described("Another model to compare with, such as the previous one.", "MODEL")
    ] = None,
    csv: Annotated[Path | None, described("Write a line per image into this .csv file.")] = None,
    html: Annotated[
        Path | None,
        described("Write a page into this .html file, with thumbnails of the worst pairs."),
    ] = None,
    as_json: AsJson = False,
    device: DeviceOption = "auto",
    labels: Labels = None,
) -> None:
    """Measure a model on labelled images: accuracy, confusions, calibration, rejection.

    Folders that are not named as a class of the model are only used to measure
    rejection. With --against MODEL, both models classify the same images, and the
    result lists images of common classes that only one of the models classifies
    correctly, with McNemar's test.

    clinit evaluate scenes2/ photographs/ --against scenes/ --html scenes2.html
    """
    check_images(images)
    for path in filter(None, (model, against)):
        check_model(path, [images])
    written = {"csv": csv, "html": html}
    for kind, file in written.items():
        if file is not None:
            check_file(file, kind)
    from clinit.headtrain.model.evaluation import Questions

    asked = Questions.of(images, labels, listener())
    found = _answered(model, asked, device, is_checked=True)
    if against is not None:
        found = found.against(_answered(against, asked, device))
    _write(found, f"{model} on {images}" + f", against {against}" * bool(against), asked, written)
    if as_json:
        content = {"model": str(model), "folder": str(images), "other": against and str(against)}
        print_content(content | found.content)
    else:
        _show(found)
    if bad := found.content["unreadable"]:
        told = examples([f"{each['image']}: {each['error']}" for each in bad])
        kind = number_of(len(asked.classes), asked.noun)
        warn(f"{len(bad):,} of {kind} cannot be read ({told})")
        raise typer.Exit(1)


def _answered(path: Path, asked: Questions, device: str, *, is_checked: bool = False) -> Evaluation:
    from clinit.headtrain.model.classifier import Reading
    from clinit.headtrain.model.evaluation import evaluate
    from clinit.headtrain.model.model import load_model

    with loading():
        model = load_model(path, device=device)
    if is_checked:
        asked.check(model, listener())
    with counting(f"{asked.noun}s") as count:
        total = len(asked.classes)
        reading = Reading(on_note=note, on_images=lambda done: count("Evaluating", done, total))
        return evaluate(model, asked, reading)


def _write(
    found: Evaluation, title: str, asked: Questions, files: Mapping[str, Path | None]
) -> None:
    if (csv := files["csv"]) is not None:
        save_csv(csv, found.table)
    if (html := files["html"]) is not None:
        from clinit.analysis.page.evaluation import evaluation_page
        from clinit.analysis.page.page import save_page

        root = asked.place if asked.rows is None else None

        save_page(html, lambda: evaluation_page(title, found, root))
    for file in filter(None, files.values()):
        note(f"written: {file}")


def _show(found: Evaluation) -> None:
    from clinit.analysis.report.table import Column, Table
    from clinit.headtrain.model.evaluation import cells_of

    for name, words in found.summary.items():
        say(f"{name}: {words}")
    for title, rows in found.tables.items():
        more = f", {MOST_LINES} of {len(rows):,}" if len(rows) > MOST_LINES else ""
        columns = [
            Column(name, "number" if kind.is_numeric() else "setting")
            for name, kind in rows.schema.items()
        ]
        lines = [[in_words(cell) for cell in line] for line in cells_of(rows.head(MOST_LINES))]
        out.print(Table(columns, [lines], title=f"{title}{more}"))
