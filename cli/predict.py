"""`clinit predict`: what an exported model sees in photographs, or a head in features."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clinit.cli.completion import models
from clinit.cli.console import note, print_json, say
from clinit.cli.context import Context, given
from clinit.cli.interruption import keeps
from clinit.cli.options import AsJson, DeviceOption, MaxPixels, Output, OutputFormat
from clinit.cli.predict_output import count_unknown, json_of, report_bad, show, write_table
from clinit.cli.progress import counting, doing
from clinit.cli.run_data import check_model
from clinit.extract.dataset.decode import MAX_PIXELS
from clinit.files.paths import check_writable
from clinit.words import examples, number_of


class RejectRule(StrEnum):
    """What tells whether an image is of none of the classes."""

    energy = "energy"
    max_logit = "max-logit"


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
    tables = {"csv": csv_file, "parquet": parquet_file}
    written = {kind: file for kind, file in tables.items() if file is not None}
    for kind, file in written.items():
        if file.suffix != f".{kind}":
            raise typer.BadParameter(f"--{kind} is the file to write, .{kind}, got {file}")
        check_writable(file, f"--{kind}")
    _check_rejection(reject, reject_rate, threshold)
    with doing("Loading the model …"):
        from clinit.extract.cache.head import read_head
        from clinit.headtrain.model.head_alone import (
            caution_of_head,
            is_head_file,
            predict_features,
        )
        from clinit.headtrain.model.model import Rule, open_predictor
        from clinit.headtrain.model.predict import find_images

        rate = 0.05 if reject_rate is None else reject_rate
        rule = None if reject is None else Rule(reject.value, rate, threshold)
        is_head = is_head_file(model)
        _refuse_options(context, model, is_head=is_head)
    if is_head:
        head = read_head(model)
        rejection, why = (None, "") if rule is None else rule.rejection(model, None)
        with doing("Naming rows …"):
            predictions = [
                each
                for file in images
                for each in predict_features(
                    head, file, top=top, features_name=features_name, reject=rejection
                )
            ]
        warning = caution_of_head(head)
    else:
        with doing("Loading the model …"):
            predictor, rejection, why = open_predictor(model, rule, device=device)
            paths = find_images(images, _note_left_out)
        with counting("images") as count:
            predictions = predictor.predict(
                paths,
                top=top,
                batch_size=batch_size,
                max_pixels=max_pixels,
                reject=rejection,
                on_images=lambda done: count("Predicting", done, len(paths)),
            )
        warning = predictor.facts.caution
    for file in written.values():
        write_table(predictions, file, rejection, of_features=is_head)
    if as_json := as_json or output is Output.json:
        found = [json_of(each, rejection) for each in predictions]
        print_json(json.dumps(found, ensure_ascii=False))
    elif written:
        kind = "rows" if is_head else "images"
        say(f"{len(predictions):,} {kind} at {' and '.join(map(str, written.values()))}")
    else:
        show(predictions, warning)
    if rejection is not None and not as_json:
        note(f"{count_unknown(predictions)}{rejection.threshold:.6g}{why}")
    report_bad(predictions)


def _check_rejection(
    reject: RejectRule | None, rate: float | None, threshold: float | None
) -> None:
    for option, value in (("--reject-rate", rate), ("--threshold", threshold)):
        if reject is None and value is not None:
            raise typer.BadParameter(f"{option} means nothing without --reject")
    if rate is not None and threshold is not None:
        raise typer.BadParameter("--reject-rate and --threshold exclude one another")
    if threshold is not None and not math.isfinite(threshold):
        raise typer.BadParameter(f"--threshold must be a finite number, got {threshold}")


def _refuse_options(context: Context, model: Path, *, is_head: bool) -> None:
    """Refuse options that mean nothing for this kind of model."""
    kind = "is a head of features" if is_head else "is a model of images"
    for name in ("device", "batch_size", "max_pixels") if is_head else ("features_name",):
        if given(context, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"{option} means nothing here: {model} {kind}")


def _note_left_out(files: Sequence[str]) -> None:
    left_out = f"{number_of(len(files), 'file')} left out, not images by their names"
    note(f"{left_out} ({examples(files)})")
