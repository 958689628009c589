"""`config.json` of a model folder: what timm needs to build the network and prepare its images.

It has the form of timm's models on the Hugging Face Hub (`timm.models.save_for_hf`), so that
`timm.create_model("local-dir:FOLDER", pretrained=True)` reads it. clinit believes the description
in the model file alone, and refuses a folder where the two disagree.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from clinit.errors import ModelError
from clinit.extract.commit import commit_file
from clinit.extract.text_file import TextFileError, read_text
from clinit.extract.transform import Transform
from clinit.extract.wordnet import title
from clinit.headtrain.export.model_file import ModelFacts

_OF_THE_NETWORK = ("pool_size", "first_conv", "classifier", "fixed_input_size")
"""What of timm's registry describes the network, whatever weights are in it."""


def write_config(network: nn.Module, facts: ModelFacts, path: Path) -> None:
    """Write the configuration of `network`, as timm reads it, to `path`.

    Raises:
        ModelError: If timm has no words for the transform.
    """
    told = _told_twice(facts)
    registered: Mapping[str, Any] = network.pretrained_cfg  # type: ignore[assignment]
    flexible = facts.model_args.get("dynamic_img_size") or (
        facts.model_args.get("strict_img_size") is False
    )
    content = {
        **told,
        "num_features": network.num_features,
        "pretrained_cfg": {
            "custom_load": False,
            **{name: registered.get(name) for name in _OF_THE_NETWORK},
            **({"fixed_input_size": False} if flexible else {}),
            **told["pretrained_cfg"],
        },
        "label_descriptions": {name: title(name) for name in facts.class_names},
    }
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    commit_file(path, lambda draft: draft.write_text(text, encoding="utf-8"))


def check_config(path: Path, facts: ModelFacts) -> None:
    """Check that the configuration at `path` says the same as the facts of the model file.

    Raises:
        ModelError: If it cannot be read, or disagrees about the network, the classes or the
            preparation of images.
    """
    remedy = "One of the two is damaged or of another model: write the folder again."
    try:
        found = json.loads(read_text(path))
    except (TextFileError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is damaged: {error}", remedy=remedy) from error
    if differing := _difference(json.loads(json.dumps(_told_twice(facts))), found):
        raise ModelError(
            f"{path} and the model file beside it disagree about {differing}", remedy=remedy
        )


def data_config(transform: Transform) -> dict[str, Any]:
    """Return the words of timm from which `timm.data.create_transform` makes `transform`.

    Raises:
        ModelError: If it has none for it.
    """
    return {
        "input_size": (3, *transform.crop),
        "interpolation": transform.interpolation,
        "crop_pct": _crop_fraction(transform),
        "crop_mode": "center" if isinstance(transform.resize, int) else "squash",
        "mean": transform.mean,
        "std": transform.std,
    }


def _told_twice(facts: ModelFacts) -> dict[str, Any]:
    """Return what both the configuration and the model file say."""
    return {
        "architecture": facts.backbone.partition(".")[0],
        "num_classes": facts.num_classes,
        "label_names": facts.class_names,
        "model_args": dict(facts.model_args),
        "pretrained_cfg": {**data_config(facts.transform), "num_classes": facts.num_classes},
    }


def _difference(expected: Mapping[str, Any], found: object) -> str | None:
    """Return the name of the first field of `expected` that `found` lacks or has otherwise."""
    if not isinstance(found, dict):
        return "everything: it holds no fields"
    for name, value in expected.items():
        if isinstance(value, dict) and name != "model_args":
            if (inner := _difference(value, found.get(name))) is not None:
                return f"{name}.{inner}" if " " not in inner else name
        elif found.get(name) != value:
            return name
    return None


def _crop_fraction(transform: Transform) -> float:
    """Return the crop fraction p of fewest digits for which floor(crop / p) is the resized side.

    Usually that is the one that the side was computed from.
    """
    height, width = transform.crop
    resize = (transform.resize,) * 2 if isinstance(transform.resize, int) else transform.resize
    pairs = tuple(zip(transform.crop, resize, strict=True))
    for digits in range(7 if resize is transform.resize or height == width else 0):
        nearest = round(height / resize[0], digits)
        for fraction in (nearest, round(nearest - 10**-digits, digits)):
            if fraction > 0 and all(math.floor(c / fraction) == r for c, r in pairs):
                return fraction
    raise ModelError(
        f"timm has no words for what the images go through: {transform.describe()}",
        remedy="Export to a file instead of a folder: `--out FILE.safetensors`.",
    )
