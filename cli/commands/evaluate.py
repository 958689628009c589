"""`clinit evaluate`: measure a model on labelled images, alone or against another model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    save_csv,
)
from clinit.cli.frame.options import AsJson, DeviceOption, Labels, described
from clinit.cli.frame.progress import counting, doing
from clinit.cli.frame.results import print_content
from clinit.errors import ModelError
from clinit.extract.dataset.names import in_words, near_names
from clinit.words import examples, number_of

if TYPE_CHECKING:
    from clinit.analysis.metrics.evaluation import Evaluation

RATE = 0.05
"""Share of the model's held-out images that the threshold for rejection by energy rejects."""
MOST_LINES = 10


@keeps("No partial file is left: a file is written completely or not at all.")
def evaluate(
    model: ModelArgument,
    images: Annotated[
        Path,
        typer.Argument(
            help="Folder of images: class folders named as the classes, or val/<class>; images in"
            " train/<class> are not used if val exists."
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
    """Measure a model on a folder of images: accuracy, confusions, calibration, rejection.

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
    classes = _listed(images, labels)
    found = _answered(model, images, classes, device, is_checked=True)
    if against is not None:
        found = found.against(_answered(against, images, classes, device))
    _write(found, f"{model} on {images}" + f", against {against}" * bool(against), images, written)
    if as_json:
        content = {"model": str(model), "folder": str(images), "other": against and str(against)}
        print_content(content | found.content)
    else:
        _show(found)
    if bad := found.content["unreadable"]:
        told = examples([f"{each['image']}: {each['error']}" for each in bad])
        warn(f"{len(bad):,} of {len(classes):,} images cannot be read ({told})")
        raise typer.Exit(1)


def _listed(images: Path, labels: str | None) -> Mapping[str, str]:
    from clinit.extract.dataset.known import FOLDER
    from clinit.extract.dataset.scan import available_splits, scan

    with doing("Listing the images …"):
        split = "val" if "val" in available_splits(FOLDER, images, labels) else "train"
        found = scan(FOLDER, images, split, labels=labels)
    found.tell(warn, note)
    return dict(found.manifest.table.select("path", "class_name").iter_rows())


def _answered(
    path: Path, root: Path, classes: Mapping[str, str], device: str, *, is_checked: bool = False
) -> Evaluation:
    from clinit.analysis.metrics.evaluation import evaluate
    from clinit.headtrain.model.classifier import Classifier
    from clinit.headtrain.model.onnx import load_onnx
    from clinit.headtrain.model.predict import Predictor, Rejection
    from clinit.headtrain.model.reading import open_model

    rejection = None
    with doing("Loading the model …"):
        if path.suffix == ".onnx":
            predictor: Predictor = load_onnx(path, device=device)
        else:
            opened = open_model(path, device=device)
            predictor = Classifier(opened.facts, opened.backbone)
            memory, known = opened.memory, opened.facts.known
            if known or (memory is not None and len(memory.held_out.labels)):
                rejection = Rejection.at_rate("energy", RATE, opened.head, memory, known)
    if is_checked:
        _check_known(classes, predictor.facts.class_names, path)
    with counting("images") as count:
        batches = predictor.batches(
            [root / image for image in classes],
            on_note=note,
            on_images=lambda done: count("Evaluating", done, len(classes)),
        )
        return evaluate(predictor.facts, classes, batches, rejection)


def _check_known(classes: Mapping[str, str], known: Sequence[str], model: Path) -> None:
    """Note the folders that are not classes of the model; refuse if there is no other folder."""
    every = {*known}
    strangers = [name for name in classes.values() if name not in every]
    names = list(dict.fromkeys(strangers))
    if near := near_names(names, known, "the folder", "the model"):
        warn(near)
    told = examples(list(map(in_words, names)))
    if names and len(strangers) == len(classes):
        raise ModelError(
            f"none of the {len(names):,} folders ({told}) is named as a class of the model",
            remedy=f"Rename the folders: `clinit model show {model}` lists the class names.",
        )
    if names:
        note(
            f"{number_of(len(names), 'folder')} not named as a class of the model ({told}):"
            f" {number_of(len(strangers), 'image')}, which only measure rejection"
        )


def _write(found: Evaluation, title: str, images: Path, files: Mapping[str, Path | None]) -> None:
    if (csv := files["csv"]) is not None:
        save_csv(csv, found.table)
    if (html := files["html"]) is not None:
        from clinit.analysis.page.evaluation import evaluation_page
        from clinit.analysis.page.page import save_page

        save_page(html, lambda: evaluation_page(title, found, images))
    for file in filter(None, files.values()):
        note(f"written: {file}")


def _show(found: Evaluation) -> None:
    from clinit.analysis.metrics.evaluation import cells_of
    from clinit.analysis.report.table import Column, Table

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
