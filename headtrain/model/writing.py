"""Write a model: a safetensors file, alone or in a folder with further files.

    model.safetensors    the state dict of the network, and its classes
    config.json          what `timm.create_model("local-dir:FOLDER", pretrained=True)` reads
    README.md            the model card: `card.md` next to this file, filled in
    model.onnx           the same network for other runtimes; optional
    memory.safetensors   statistics and features of the classes, for later additions; optional

timm loads `model.safetensors` without clinit, and clinit needs no other file. A folder is written
under a temporary name and renamed, so that it is complete or absent. `config.json` has the form of
timm's models on the Hugging Face Hub (`timm.models.save_for_hf`).

The facts in a safetensors file are a sealed JSON document under one key of its metadata:
safetensors writes several keys in a random order, and equal models should be equal files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save as save_state
from torch import nn

from clinit.errors import ModelError, StorageError
from clinit.extract.cache.head import foreign_to_head
from clinit.extract.dataset.names import title
from clinit.extract.network.backbone import state_sha256
from clinit.extract.network.transform import Transform
from clinit.files import paths as occupied
from clinit.files.commit import commit_file, commit_folder
from clinit.files.paths import is_folder
from clinit.files.tensors import tensors_bytes
from clinit.headtrain.heads.temperature import divided
from clinit.headtrain.model import memory as remembered
from clinit.headtrain.model.card import card
from clinit.headtrain.model.facts import DOCUMENT, METADATA, ModelFacts
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.model import Model, checked_network
from clinit.headtrain.model.onnx import OnnxCheck, write_onnx
from clinit.headtrain.model.reading import MEMORY_FILE, MODEL_FILE, read_facts

CONFIG_FILE, CARD_FILE, ONNX_FILE = "config.json", "README.md", "model.onnx"
_FILES = frozenset({MODEL_FILE, CONFIG_FILE, CARD_FILE, ONNX_FILE, MEMORY_FILE})
_TOLERANCE = 1e-5
"""Largest difference between the logits of two networks, relative to the largest logit."""
_OF_THE_NETWORK = ("pool_size", "first_conv", "classifier", "fixed_input_size")
"""Parts of timm's registry that describe the network, whatever its weights."""


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """Result of writing a model."""

    facts: ModelFacts
    num_parameters: int
    onnx: OnnxCheck | None
    """Comparison with the ONNX file; None if none was written."""


def write_model(model: Model, out: Path, *, onnx: bool = False, overwrite: bool = False) -> Written:
    """Write the network of a model with its classes to `out`.

    A folder contains the memory of the model; a file, whose name ends in .safetensors, does not.

    Args:
        model: The model; its head is written divided by its temperature.
        out: The folder or the file; it must not exist, unless `overwrite`.
        onnx: Also write the network as ONNX into the folder, and compare both on noise.
        overwrite: Replace an existing model.

    Raises:
        ModelError: If `out` exists and may not be replaced, if timm cannot load the network from
            a folder, or if the ONNX file computes something else.
        BackboneError: If the network cannot take the head.
        ClinitError: If the model cannot be written; nothing is left behind then.
    """
    network = checked_network(model, divided(model.head, model.facts.temperature))
    weights = state_sha256(network.state_dict())
    facts = replace(model.facts, weights=weights)
    check = write_network(network, facts, out, memory=model.memory, onnx=onnx, overwrite=overwrite)
    return Written(facts, sum(each.numel() for each in network.parameters()), check)


def facts_text(facts: ModelFacts) -> str:
    """Return the facts as the sealed JSON of the metadata of a file."""
    content = {
        **asdict(facts),
        # A Python literal, because JSON has no tuples.
        "model_args": repr(dict(facts.model_args)),
        "fingerprint": dict(facts.fingerprint.fields),
        "record": dict(facts.record),
    }
    # A path that is not UTF-8 contains surrogates, which JSON must escape.
    return DOCUMENT.text(content, indent=None).encode(errors="backslashreplace").decode()


def write_network(
    network: nn.Module,
    facts: ModelFacts,
    out: Path,
    *,
    memory: Memory | None = None,
    onnx: bool = False,
    overwrite: bool = False,
) -> OnnxCheck | None:
    """Write a network that has its classifier to `out`, as in `write_model`."""
    check_free(out, overwrite=overwrite)
    text, check = facts_text(facts), None

    def write_weights(draft: Path) -> None:
        # Clones, because `save_state` refuses tensors that share memory.
        state = {n: value.cpu().contiguous().clone() for n, value in network.state_dict().items()}
        draft.write_bytes(save_state(state, metadata={METADATA: text}))

    def write_folder(draft: Path) -> None:
        nonlocal check
        write_weights(draft / MODEL_FILE)
        config = json.dumps(folder_config(network, facts), indent=2, allow_nan=False) + "\n"
        (draft / CONFIG_FILE).write_text(config, encoding="utf-8")
        if why := _difference_in_timm(draft, network, facts):
            raise ModelError(
                f"timm does not build the same {facts.backbone} from a folder:"
                f" {' '.join(why.split())}",
                remedy="Export to a file instead of a folder: `--out FILE.safetensors`.",
            )
        if onnx:
            check = write_onnx(network, facts, text, draft / ONNX_FILE)
        if memory is not None:
            write_memory(memory, draft / MEMORY_FILE)
        (draft / CARD_FILE).write_text(card(facts), encoding="utf-8")

    if out.suffix == ".safetensors":
        commit_file(out, write_weights)
    else:
        commit_folder(out, write_folder, overwrite=overwrite)
    return check


@torch.inference_mode()
def _difference_in_timm(folder: Path, network: nn.Module, facts: ModelFacts) -> str | None:
    """Return how the network that timm builds from a folder differs on seeded noise, if it does."""
    try:
        loaded = timm.create_model(f"local-dir:{folder}", pretrained=True)
    except Exception as error:  # architectures raise any type
        return f"{type(error).__name__}: {error}"
    device = next(network.parameters()).device
    noise = torch.randn(2, 3, *facts.transform.crop, generator=torch.Generator().manual_seed(0))
    images = noise.to(device, memory_format=torch.channels_last)
    expected = network(images)
    found = loaded.eval().to(device).to(memory_format=torch.channels_last)(images)
    if found.shape != expected.shape:
        return f"it has {found.shape[-1]:,} rows, not {expected.shape[-1]:,}"
    difference, largest = (found - expected).abs().max(), expected.abs().max()
    if difference <= _TOLERANCE * largest:  # not true of NaN
        return None
    return f"its logits differ by {difference:g} of {largest:g}"


def folder_config(network: nn.Module, facts: ModelFacts) -> dict[str, Any]:
    """Return what `config.json` contains."""
    registered: Mapping[str, Any] = network.pretrained_cfg  # type: ignore[assignment]
    of_network = {name: registered.get(name) for name in _OF_THE_NETWORK}
    args, classes = dict(facts.model_args), len(facts.class_names)
    if args.get("dynamic_img_size") or args.get("strict_img_size") is False:
        # Or timm builds the network for the size of the images, and resamples its positions.
        of_network["fixed_input_size"] = False
        args.setdefault("img_size", network.patch_embed.img_size)  # type: ignore[union-attr]
    return {
        "num_features": int(network.num_features),  # type: ignore[arg-type]
        "label_descriptions": {name: title(name) for name in facts.class_names},
        "architecture": facts.backbone.partition(".")[0],
        "num_classes": classes,
        "label_names": facts.class_names,
        "model_args": args,
        "pretrained_cfg": {
            "custom_load": False,
            **of_network,
            **data_config(facts.transform),
            "num_classes": classes,
        },
    }


def data_config(transform: Transform) -> dict[str, Any]:
    """Return the settings from which `timm.data.create_transform` makes `transform`.

    Raises:
        ModelError: If timm has no settings for it.
    """
    return {
        "input_size": (3, *transform.crop),
        "interpolation": transform.interpolation,
        "crop_pct": _crop_fraction(transform),
        "crop_mode": "center" if isinstance(transform.resize, int) else "squash",
        "mean": transform.mean,
        "std": transform.std,
    }


def _crop_fraction(transform: Transform) -> float:
    """Return the crop fraction p of fewest digits for which floor(crop / p) is the resized side.

    Usually this is the fraction that the side was computed from.
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
        f"timm has no settings for the transform of the images: {transform.describe()}",
        remedy="Export to a file instead of a folder: `--out FILE.safetensors`.",
    )


def write_memory(memory: Memory, path: Path) -> None:
    """Write the memory of a model to a file in the draft of its folder."""
    facts = {name: getattr(memory, name) for name in remembered.Facts.__annotations__}
    kind, key = remembered.DOCUMENT, remembered.METADATA
    path.write_bytes(tensors_bytes(memory.tensors(), facts, kind, key))


def check_free(out: Path, *, overwrite: bool = False) -> None:
    """Check that a model, or a head alone, can be written to `out`.

    Args:
        out: A folder or a file.
        overwrite: Whether an existing model or head may be replaced.

    Raises:
        ModelError: If `out` exists and may not be replaced.
    """
    occupied.check_free(out, "model", _foreign, ModelError, overwrite=overwrite)


def _foreign(path: Path) -> str | None:
    """Return why an existing file or folder is no model; None for a model."""
    if is_folder(path):
        if others := sorted({each.name for each in path.iterdir()} - _FILES):
            return f"it holds {', '.join(others[:3])}, which does not belong to a model folder"
    elif foreign_to_head(path) is None:
        return None  # a head alone may be replaced, too
    try:
        read_facts(path / MODEL_FILE if is_folder(path) else path)
    except (ModelError, StorageError):
        return "it is no model"
    return None
