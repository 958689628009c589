"""`clinit predict`: what an exported model sees in photographs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.completion import models
from clinit.cli.console import note, print_json, say
from clinit.cli.context import Context, given
from clinit.cli.interruption import keeps
from clinit.cli.options import AsJson, DeviceOption, MaxPixels, Output, OutputFormat
from clinit.cli.predict_output import count_unknown, report_bad, show
from clinit.cli.progress import counting, doing
from clinit.cli.run_data import check_model
from clinit.extract.image_size import MAX_PIXELS
from clinit.files.paths import check_writable
from clinit.words import examples, number_of

if TYPE_CHECKING:
    from clinit.headtrain.model.predict import Prediction, Predictor, Rejection


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
    from clinit.headtrain.model.model_file import caution
    from clinit.headtrain.model.predict import find_images

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
    from clinit.extract.cache.head import read_head
    from clinit.headtrain.model.head_alone import predict_features
    from clinit.headtrain.model.model_file import caution_of_head

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


class RejectRule(StrEnum):
    """What tells whether an image is of none of the classes."""

    energy = "energy"
    max_logit = "max-logit"


@dataclass(frozen=True, slots=True)
class Asked:
    """When images are to be called unknown."""

    rule: str
    rate: float
    threshold: float | None


@dataclass(frozen=True, slots=True)
class Opened:
    """A model, and what it takes for unknown."""

    predictor: Predictor
    rejection: Rejection | None
    why: str = ""
    """Where the threshold is from."""


def rejection_asked(
    rule: RejectRule | None, rate: float | None, threshold: float | None
) -> Asked | None:
    """Return what three options ask for, None where no image is to be called unknown."""
    if rule is None:
        for option, value in (("--reject-rate", rate), ("--threshold", threshold)):
            if value is not None:
                raise typer.BadParameter(f"{option} means nothing without --reject")
        return None
    if rate is not None and threshold is not None:
        raise typer.BadParameter("--reject-rate and --threshold exclude one another")
    if threshold is not None and not math.isfinite(threshold):
        raise typer.BadParameter(f"--threshold must be a finite number, got {threshold}")
    return Asked(rule.value, 0.05 if rate is None else rate, threshold)


def opens_head(model: Path) -> bool:
    """Return whether the model is a head alone, which names rows of features."""
    from clinit.headtrain.model.head_alone import is_head_file

    return is_head_file(model)


def refuse(context: Context, model: Path, *names: str) -> None:
    """Refuse options that mean nothing for this kind of model."""
    for name in names:
        if given(context, name) is not None:
            kind = "is a model of images" if name == "features_name" else "is a head of features"
            raise typer.BadParameter(
                f"--{name.replace('_', '-')} means nothing here: {model} {kind}"
            )


def rejection_of_head(model: Path, asked: Asked | None) -> Rejection | None:
    """Return when a row of features is of none of the classes of a head."""
    from clinit.errors import ModelError
    from clinit.headtrain.model.predict import Rejection

    if asked is None:
        return None
    if asked.threshold is None:
        raise ModelError(
            f"{model} is a head, which remembers no image of its classes: nothing says how low the"
            " score of an unknown row is",
            remedy="Give the lowest score of a known row: `--threshold VALUE`.",
        )
    return Rejection(asked.rule, asked.threshold)


def open_predictor(model: Path, device: str, asked: Asked | None) -> Opened:
    """Open the model with what computes its file, and take the threshold from what it remembers."""
    from clinit.headtrain.model.onnx import load_onnx
    from clinit.headtrain.model.predict import Rejection, load_model

    is_onnx = model.suffix == ".onnx"
    if asked is None or asked.threshold is not None:
        load = load_onnx if is_onnx else load_model
        given = None if asked is None else asked.threshold
        rejection = None if asked is None or given is None else Rejection(asked.rule, given)
        return Opened(load(model, device=device), rejection)
    return _with_memory(model, device, asked)


def _with_memory(model: Path, device: str, asked: Asked) -> Opened:
    from clinit.errors import ModelError
    from clinit.headtrain.model.edit import open_model
    from clinit.headtrain.model.predict import Classifier, Rejection

    opened = None if model.suffix == ".onnx" else open_model(model, device=device)
    if opened is None or opened.memory is None:
        raise ModelError(
            f"{model} remembers no image of its classes: nothing says how low the score of an"
            " unknown image is",
            remedy="Let the model remember some, `clinit remember MODEL IMAGES --out NEW`, and give"
            " the new folder; or give the lowest score of a known image: `--threshold VALUE`.",
        )
    rejection = Rejection.at_rate(asked.rule, asked.rate, opened.head, opened.memory)
    count = len(opened.memory.held_out.labels)
    why = f", below which at most {100 * asked.rate:g} % of {count:,} held-out images are"
    return Opened(Classifier(opened.facts, opened.backbone), rejection, why)
