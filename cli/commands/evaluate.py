"""`clinit evaluate`: measure a model on labelled images, alone or against another model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.frame import model_source
from clinit.cli.frame.console import note, out, say, warn
from clinit.cli.frame.context import Context, refuse_idle
from clinit.cli.frame.options import AsJson, DeviceOption, Labels, described
from clinit.cli.frame.process import keeps
from clinit.cli.frame.progress import training_progress
from clinit.cli.frame.results import print_content
from clinit.cli.frame.study_options import takes
from clinit.files.lock import write_in_turn
from clinit.headtrain.model.reading import Reading
from clinit.observer import Doing, Noted, Progressed
from clinit.setting import fields_of
from clinit.words import examples, number_of

if TYPE_CHECKING:
    from clinit.headtrain.model.evaluation import Evaluation, Questions


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

        def counted(done: int) -> None:
            observe(Progressed("Evaluating", done, total, what))

        reading = replace(reading, on_note=note, on_images=counted)
        found = evaluated(one, asked, reading, other)
    title = f"{model} on {images}" + f", against {against}" * (against is not None)
    _write(found, title, asked, written)
    if as_json:
        content = {"model": str(model), "digest": one.facts.digest, "folder": str(images)}
        print_content(content | {"other": against and str(against)} | found.content)
    else:
        _show(str(model), found)
    if bad := found.content["unreadable"]:
        told = examples([f"{each['image']}: {each['error']}" for each in bad])
        kind = number_of(len(asked.classes), asked.noun)
        warn(f"{len(bad):,} of {kind} cannot be read ({told})")
        raise typer.Exit(1)


def _write(found: Evaluation, title: str, asked: Questions, files: dict[str, Path | None]) -> None:
    if (csv := files["csv"]) is not None:
        write_in_turn(csv, found.table.write_csv)
    if (html := files["html"]) is not None:
        from clinit.analysis.page.page import save_page
        from clinit.analysis.page.photographs import evaluation_page

        root = asked.place if asked.rows is None else None
        command = model_source.command_data()["command"]
        save_page(html, lambda: evaluation_page(title, found, root, command))
    for file in filter(None, files.values()):
        note(f"written: {file}")


def _show(model: str, found: Evaluation) -> None:
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
