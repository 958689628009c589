"""`clinit predict`: what an exported model sees in photographs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.choices import AsJson, DeviceOption, MaxPixels, Output, OutputFormat
from clinit.cli.completion import models
from clinit.cli.console import note, print_json, say
from clinit.cli.context import Context
from clinit.cli.interruption import keeps
from clinit.cli.places import check_model
from clinit.cli.predict_model import (
    Asked,
    RejectRule,
    open_predictor,
    opens_head,
    refuse,
    rejection_asked,
    rejection_of_head,
)
from clinit.cli.predict_table import count_unknown, report_bad, show
from clinit.cli.progress import counting, doing
from clinit.extract.dataset.decode import MAX_PIXELS
from clinit.files.paths import check_writable
from clinit.headtrain.examples import examples
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.headtrain.export.prediction import Prediction
    from clinit.headtrain.export.rejection import Rejection


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
    as_json = as_json or output is Output.json
    from clinit.cli.predict_output import json_of, write_csv, write_parquet

    for option, file in (("csv", csv_file), ("parquet", parquet_file)):
        if file is not None and file.suffix != f".{option}":
            raise typer.BadParameter(f"--{option} is the file to write, .{option}, got {file}")
        if file is not None:
            check_writable(file, f"--{option}")
    asked = rejection_asked(reject, reject_rate, threshold)
    with doing("Loading the model …"):
        is_head = opens_head(model)
    if is_head:
        refuse(context, model, "device", "batch_size", "max_pixels")
        answers = _of_features(model, images, features_name, top, asked)
    else:
        refuse(context, model, "features_name")
        settings = {"top": top, "batch_size": batch_size, "max_pixels": max_pixels}
        answers = _of_images(model, images, device, asked, settings)
    predictions, rejection = answers.predictions, answers.rejection
    files = {write_csv: csv_file, write_parquet: parquet_file}
    written = {write: file for write, file in files.items() if file is not None}
    for write, file in written.items():
        write(predictions, file, rejection, of_features=is_head)
    if as_json:
        told = [json_of(each, rejection) for each in predictions]
        print_json(json.dumps(told, ensure_ascii=False))
    elif written:
        kind = "rows" if is_head else "images"
        say(f"{len(predictions):,} {kind} at {' and '.join(map(str, written.values()))}")
    else:
        show(predictions, answers.warning)
    if rejection is not None and not as_json:
        note(f"{count_unknown(predictions)}{rejection.threshold:.6g}{answers.why}")
    report_bad(predictions)


@dataclass(frozen=True, slots=True)
class _Answers:
    predictions: list[Prediction]
    rejection: Rejection | None
    why: str = ""
    """Where the threshold is from."""
    warning: str | None = None
    """What to know of the probabilities."""


def _of_images(
    model: Path,
    images: Sequence[Path],
    device: str,
    asked: Asked | None,
    settings: Mapping[str, int],
) -> _Answers:
    from clinit.headtrain.export.image_files import find_images
    from clinit.headtrain.export.probabilities import caution

    with doing("Loading the model …"):
        opened = open_predictor(model, device, asked)
        paths = find_images(images, _note_left_out)
    with _progress(len(paths)) as on_images:
        found = opened.predictor.predict(
            paths, reject=opened.rejection, on_images=on_images, **settings
        )
    return _Answers(found, opened.rejection, opened.why, caution(opened.predictor.facts))


def _note_left_out(files: Sequence[str]) -> None:
    left_out = f"{number_of(len(files), 'file')} left out, not images by their names"
    note(f"{left_out} ({examples(files)})")


def _of_features(
    model: Path, files: Sequence[Path], name: str | None, top: int, asked: Asked | None
) -> _Answers:
    from clinit.extract.head import read_head
    from clinit.headtrain.export.feature_prediction import predict_features
    from clinit.headtrain.export.probabilities import caution_of_head

    head, rejection = read_head(model), rejection_of_head(model, asked)
    with doing("Naming rows …"):
        found = [
            each
            for file in files
            for each in predict_features(head, file, top=top, features_name=name, reject=rejection)
        ]
    return _Answers(found, rejection, warning=caution_of_head(head))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    with counting("images") as count:
        yield lambda done: count("Predicting", done, total)
