"""The model of `clinit predict`, with what it takes for unknown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clinit.cli.context import Context, given

if TYPE_CHECKING:
    from clinit.headtrain.export.prediction import Predictor
    from clinit.headtrain.export.rejection import Rejection


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
    from clinit.headtrain.export.head_alone import is_head_file

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
    from clinit.headtrain.export.rejection import Rejection

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
    from clinit.headtrain.export.classifier import load_model
    from clinit.headtrain.export.onnx_classifier import load_onnx
    from clinit.headtrain.export.rejection import Rejection

    is_onnx = model.suffix == ".onnx"
    if asked is None or asked.threshold is not None:
        load = load_onnx if is_onnx else load_model
        given = None if asked is None else asked.threshold
        rejection = None if asked is None or given is None else Rejection(asked.rule, given)
        return Opened(load(model, device=device), rejection)
    return _with_memory(model, device, asked)


def _with_memory(model: Path, device: str, asked: Asked) -> Opened:
    from clinit.errors import ModelError
    from clinit.headtrain.deployed.model import open_model
    from clinit.headtrain.export.classifier import Classifier
    from clinit.headtrain.export.rejection import Rejection

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
