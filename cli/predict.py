"""`clinit predict`: what an exported model sees in photographs."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from clinit.cli.choices import DeviceOption, MaxPixels
from clinit.cli.console import err, note, out, print_json, say, warn
from clinit.cli.interruption import keeps
from clinit.extract.image_size import MAX_PIXELS
from clinit.extract.visible import visible

if TYPE_CHECKING:
    from rich.table import Table

    from clinit.headtrain.export.classifier import Classifier, Guess, Prediction

COLUMNS = ("image", "rank", "class", "title", "probability", "task", "error")
"""Header of the CSV file."""


@keeps("No half of a file is left: it is written whole or not at all.")
def predict(
    model: Annotated[
        Path, typer.Argument(help="Model file of `clinit export`.", show_default=False)
    ],
    images: Annotated[
        list[Path],
        typer.Argument(
            help="Images, or folders to search for some.", metavar="IMAGE...", show_default=False
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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for programs instead of a table.")
    ] = False,
    device: DeviceOption = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per forward pass.")] = 64,
    max_pixels: MaxPixels = MAX_PIXELS,
) -> None:
    """Name what is in images, with an exported model: the likeliest classes of each.

    Images are prepared as they were when the features were extracted. Classes
    that the network has learnt after those of its base are marked with their
    task. A file that is not an image is reported with the reason at the end and
    does not affect the others; the exit code is then 1.
    """
    from clinit.headtrain.export.classifier import find_images, load_model

    if csv_file is not None and csv_file.suffix != ".csv":
        raise typer.BadParameter(f"--csv is the file to write, .csv, got {csv_file}")
    with err.status("Loading the model …"):
        classifier = load_model(model, device=device)
        paths = find_images(images)
    with _progress(len(paths)) as on_images:
        predictions = list(
            classifier.predict(
                paths,
                top=top,
                batch_size=batch_size,
                max_pixels=max_pixels,
                on_images=on_images,
            )
        )
    if csv_file is not None:
        _write_csv(predictions, csv_file)
    if as_json:
        print_json(json.dumps([_as_json(each) for each in predictions], ensure_ascii=False))
    elif csv_file is not None:
        say(f"{len(predictions):,} images at {csv_file}")
    else:
        _show(classifier, predictions)
    _report_bad([each for each in predictions if each.reason is not None], len(predictions))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (BarColumn(bar_width=None), MofNCompleteColumn(), TextColumn("images"))
    bar = Progress(
        *columns, Remaining(compact=True), console=err, disable=not err.is_terminal, transient=True
    )
    with bar:
        images = bar.add_task("Predicting", total=total)
        yield lambda done: bar.update(images, completed=done)


def _show(classifier: Classifier, predictions: Sequence[Prediction]) -> None:
    from clinit.extract.tree import printable

    good = [each for each in predictions if each.reason is None]
    if not good:
        return
    folder = _common_folder([each.path for each in good])
    above = printable(good[0].path) if len(good) == 1 else printable(folder or "")
    if above:
        out.print(Text(visible(above), style="bold"), soft_wrap=True)
    out.print(_table(good, folder))
    if classifier.caution is not None:
        note(classifier.caution)


def _table(predictions: Sequence[Prediction], folder: str | None) -> Table:
    """Return a table with a line per class, below its image where there are several of both."""
    from rich import box
    from rich.table import Table

    several = len(predictions) > 1
    below = several and max(len(each.guesses) for each in predictions) > 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    if several and not below:
        table.add_column("image", overflow="fold")
    table.add_column("image and its classes" if below else "class", overflow="fold")
    table.add_column("probability", justify="right", no_wrap=True)
    table.add_column("since", no_wrap=True)
    for prediction in predictions:
        image = Text(visible(_shown(prediction.path, folder)), style="bold" if below else "")
        if below:
            table.add_row(image)
        for guess in prediction.guesses:
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


def _shown(path: Path, folder: str | None) -> str:
    from clinit.extract.tree import printable

    return printable(os.path.relpath(path, folder) if folder else path)


def _common_folder(paths: Sequence[Path]) -> str | None:
    """Return the folder that all paths are in, as they were given; None if there is none."""
    try:
        return os.path.commonpath([path.parent for path in paths]) or None
    except ValueError:  # absolute and relative ones
        return None


def _as_json(prediction: Prediction) -> dict[str, Any]:
    from clinit.extract.tree import printable

    return {
        "image": printable(prediction.path),
        "error": prediction.reason,
        "classes": [
            {
                "class": guess.name,
                "title": guess.title,
                "probability": guess.probability,
                "task": guess.task,
            }
            for guess in prediction.guesses
        ],
    }


def _write_csv(predictions: Sequence[Prediction], path: Path) -> None:
    from clinit.extract.commit import commit_file
    from clinit.extract.lock import claim_file
    from clinit.extract.tree import printable

    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for prediction in predictions:
        image = printable(prediction.path)
        for rank, guess in enumerate(prediction.guesses, start=1):
            probability = f"{guess.probability:.6g}"
            writer.writerow([image, rank, guess.name, guess.title, probability, guess.task, ""])
        if prediction.reason is not None:
            writer.writerow([image, *[""] * 5, prediction.reason])
    content = text.getvalue().encode()
    with claim_file(path, on_busy=lambda: None):
        commit_file(path, lambda draft: draft.write_bytes(content))


def _report_bad(bad: Sequence[Prediction], total: int) -> None:
    from clinit.extract.tree import printable

    if not bad:
        return
    warn(f"{len(bad):,} of {total:,} images cannot be read:")
    for prediction in bad:
        line = f"    {printable(prediction.path)}: {prediction.reason}"
        err.print(Text(visible(line)), soft_wrap=True)
    raise typer.Exit(1)
