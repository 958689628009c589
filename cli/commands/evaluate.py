"""`clinit evaluate`: how well a model names images of known classes, alone or against another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.frame.console import note, out, print_json, say, warn
from clinit.cli.frame.interruption import keeps
from clinit.cli.frame.model_source import ModelArgument, check_file, check_images, check_model
from clinit.cli.frame.options import AsJson, DeviceOption, described
from clinit.cli.frame.progress import counting, doing
from clinit.errors import ModelError
from clinit.extract.dataset.known import in_words
from clinit.words import examples, number_of

if TYPE_CHECKING:
    from clinit.analysis.metrics.evaluation import Evaluation

RATE = 0.05
"""Share of the held-out images of the model whose energy is below the threshold."""
MOST_LINES = 10
"""Lines of a table in the terminal."""


@keeps("No partial file is left: it is written completely or not at all.")
def evaluate(
    model: ModelArgument,
    images: Annotated[
        Path,
        typer.Argument(
            help="Folder of images: class folders, or train/<class> and val/<class>, of which val"
            " is taken. Folders have the names of classes."
        ),
    ],
    against: Annotated[
        Path | None,
        described("Another model, such as the one before, to list gains and losses.", "MODEL"),
    ] = None,
    csv: Annotated[Path | None, described("Write a line per image into this .csv file.")] = None,
    html: Annotated[
        Path | None,
        described("Write a page into this .html file, with thumbnails of the worst pairs."),
    ] = None,
    as_json: AsJson = False,
    device: DeviceOption = "auto",
) -> None:
    """Measure a model on a folder of images: accuracy, confusions, calibration, rejection.

    Images in folders that are no class of the model count for rejection alone.
    With --against OTHER both models answer the same images; images of classes that
    both have are gained, lost or neither, with McNemar's test.

    clinit evaluate scenes2/ photographs/ --against scenes/ --html scenes2.html
    """
    check_images(images)
    for path in filter(None, (model, against)):
        check_model(path, [images])
    written = {"csv": csv, "html": html}
    for kind, file in written.items():
        if file is not None:
            check_file(file, kind)
    classes = _listed(images)
    found = _answered(model, images, classes, device)
    _check_known(found, model)
    if against is not None:
        found = found.against(_answered(against, images, classes, device))
    _write(found, f"{model} on {images}" + f", against {against}" * bool(against), images, written)
    if as_json:
        content = {"model": str(model), "folder": str(images), "other": against and str(against)}
        print_json(json.dumps(content | found.content, ensure_ascii=False))
    else:
        _show(found)
    if bad := found.content["unreadable"]:
        told = examples([f"{each['image']}: {each['error']}" for each in bad])
        warn(f"{len(bad):,} of {len(classes):,} images cannot be read ({told})")
        raise typer.Exit(1)


def _listed(images: Path) -> Mapping[str, str]:
    """Return the name of the class of each image in a folder."""
    from clinit.extract.dataset.known import FOLDER
    from clinit.extract.dataset.scan import available_splits, scan

    with doing("Listing the images …"):
        split = "val" if "val" in available_splits(FOLDER, images) else "train"
        found = scan(FOLDER, images, split)
    for warning in found.warnings:
        warn(warning)
    return dict(found.manifest.table.select("path", "class_name").iter_rows())


def _answered(path: Path, root: Path, classes: Mapping[str, str], device: str) -> Evaluation:
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
            if opened.memory is not None and len(opened.memory.held_out.labels):
                rejection = Rejection.at_rate("energy", RATE, opened.head, opened.memory)
    with counting("images") as count:
        batches = predictor.batches(
            [root / image for image in classes],
            on_note=note,
            on_images=lambda done: count("Evaluating", done, len(classes)),
        )
        return evaluate(predictor.facts, classes, batches, rejection)


def _check_known(found: Evaluation, model: Path) -> None:
    """Name the folders that are no class of the model; refuse a folder of nothing else."""
    strangers = found.strangers["class"]
    names = strangers.unique(maintain_order=True).to_list()
    told = examples(list(map(in_words, names)))
    if names and not len(found.known):
        raise ModelError(
            f"the model has no class of these {len(names):,} names ({told})",
            remedy=f"Name the folders as its classes: `clinit model show {model}` lists them.",
        )
    if names:
        note(
            f"{number_of(len(names), 'folder')} of no class of the model ({told}):"
            f" {number_of(len(strangers), 'image')} that measure rejection alone"
        )


def _write(found: Evaluation, title: str, images: Path, files: Mapping[str, Path | None]) -> None:
    from clinit.files.commit import commit_file
    from clinit.files.lock import claim_file

    if (csv := files["csv"]) is not None:
        with claim_file(csv, on_busy=lambda: None):
            commit_file(csv, found.table.write_csv)
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
