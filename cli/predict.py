"""`clinit predict`: what an exported model sees in photographs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from clinit.cli.choices import DeviceOption, MaxPixels
from clinit.cli.console import err, note, out, print_json, say, warn
from clinit.cli.interruption import keeps
from clinit.cli.predict_model import RejectRule, open_predictor, rejection_asked
from clinit.extract.image_size import MAX_PIXELS
from clinit.extract.visible import visible

if TYPE_CHECKING:
    from rich.table import Table

    from clinit.headtrain.export.model_file import ModelFacts
    from clinit.headtrain.export.prediction import Guess, Prediction


@keeps("No half of a file is left: it is written whole or not at all.")
def predict(
    model: Annotated[
        Path,
        typer.Argument(
            help="Model of `clinit export`: its folder, or a file, .safetensors or .onnx.",
            show_default=False,
        ),
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
    parquet_file: Annotated[
        Path | None,
        typer.Option(
            "--parquet",
            help="The same into this .parquet file.",
            metavar="FILE",
            dir_okay=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for programs instead of a table.")
    ] = False,
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
    device: DeviceOption = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per forward pass.")] = 64,
    max_pixels: MaxPixels = MAX_PIXELS,
) -> None:
    """Name what is in images, with an exported model: the likeliest classes of each.

    Images are prepared as they were when the features were extracted. Classes
    that the network has learnt after those of its base are marked with their
    task. With --reject, images of none of the classes are called unknown. A file
    that is not an image is reported with the reason at the end and does not
    affect the others; the exit code is then 1.
    """
    from clinit.cli.predict_output import json_of, write_csv, write_parquet
    from clinit.headtrain.export.image_files import find_images

    for option, file in (("csv", csv_file), ("parquet", parquet_file)):
        if file is not None and file.suffix != f".{option}":
            raise typer.BadParameter(f"--{option} is the file to write, .{option}, got {file}")
    asked = rejection_asked(reject, reject_rate, threshold)
    with err.status("Loading the model …"):
        opened = open_predictor(model, device, asked)
        paths = find_images(images)
    classifier, rejection = opened.predictor, opened.rejection
    with _progress(len(paths)) as on_images:
        predictions = list(
            classifier.predict(
                paths,
                top=top,
                batch_size=batch_size,
                max_pixels=max_pixels,
                reject=rejection,
                on_images=on_images,
            )
        )
    files = {write_csv: csv_file, write_parquet: parquet_file}
    written = {write: file for write, file in files.items() if file is not None}
    for write, file in written.items():
        write(predictions, file, rejection)
    if as_json:
        told = [json_of(each, rejection) for each in predictions]
        print_json(json.dumps(told, ensure_ascii=False))
    elif written:
        say(f"{len(predictions):,} images at {' and '.join(map(str, written.values()))}")
    else:
        _show(classifier.facts, predictions)
    if rejection is not None and not as_json:
        note(f"{_count_unknown(predictions)}{rejection.threshold:.6g}{opened.why}")
    _report_bad([each for each in predictions if each.reason is not None], len(predictions))


def _count_unknown(predictions: Sequence[Prediction]) -> str:
    good = [each for each in predictions if each.reason is None]
    unknown = sum(each.unknown for each in good)
    return f"{unknown:,} of {len(good):,} images unknown: their score is below "


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


def _show(facts: ModelFacts, predictions: Sequence[Prediction]) -> None:
    from clinit.extract.tree import printable
    from clinit.headtrain.export.probabilities import caution

    good = [each for each in predictions if each.reason is None]
    if not good:
        return
    folder = _common_folder([each.path for each in good])
    above = printable(good[0].path) if len(good) == 1 else printable(folder or "")
    if above:
        out.print(Text(visible(above), style="bold"), soft_wrap=True)
    out.print(_table(good, folder))
    if (warning := caution(facts)) is not None:
        note(warning)


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


def _shown(path: Path, folder: str | None) -> str:
    from clinit.extract.tree import printable

    return printable(os.path.relpath(path, folder) if folder else path)


def _common_folder(paths: Sequence[Path]) -> str | None:
    """Return the folder that all paths are in, as they were given; None if there is none."""
    try:
        return os.path.commonpath([path.parent for path in paths]) or None
    except ValueError:  # absolute and relative ones
        return None


def _report_bad(bad: Sequence[Prediction], total: int) -> None:
    from clinit.extract.tree import printable

    if not bad:
        return
    warn(f"{len(bad):,} of {total:,} images cannot be read:")
    for prediction in bad:
        line = f"    {printable(prediction.path)}: {prediction.reason}"
        err.print(Text(visible(line)), soft_wrap=True)
    raise typer.Exit(1)
