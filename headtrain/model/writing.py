"""Write a model: a folder, or a file.

    model.safetensors    the network and its classes, or a head alone
    config.json          for timm (`clinit.headtrain.model.network`); not for a head alone
    README.md            the model card: `card.md` next to this file, filled in
    model.onnx           the same network for other runtimes; optional
    memory.safetensors   statistics and features of the classes, for later additions; optional

clinit needs no other file than the first. A folder is written under a temporary name and renamed,
so that it is complete or absent. A file of a head contains the memory too, a file of a network does
not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clinit.errors import ModelError, StorageError
from clinit.extract.cache.head import foreign_to_head, head_bytes
from clinit.files import paths as occupied
from clinit.files.commit import commit_file, commit_folder
from clinit.files.paths import is_folder
from clinit.headtrain.heads.temperature import divided
from clinit.headtrain.model.card import card
from clinit.headtrain.model.classifier import MEMORY_FILE, MODEL_FILE, Classifier
from clinit.headtrain.model.memory import memory_bytes
from clinit.headtrain.model.reading import (
    MEMORY_ARRAY,
    facts_in_origin,
    is_head_file,
    read_facts,
)

if TYPE_CHECKING:
    from clinit.headtrain.model.onnx import OnnxCheck

CARD_FILE, ONNX_FILE = "README.md", "model.onnx"
_FILES = frozenset({MODEL_FILE, "config.json", CARD_FILE, ONNX_FILE, MEMORY_FILE})


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A model that was written."""

    path: Path
    model: Classifier
    num_parameters: int
    """Of the network, or of the head alone."""
    onnx: OnnxCheck | None = None
    """Comparison with the ONNX file; None if none was written."""


def write_model(
    model: Classifier, out: Path, *, onnx: bool = False, overwrite: bool = False
) -> Written:
    """Write a model to `out`; see `Model.save`.

    The head is written divided by its temperature.

    Raises:
        ModelError: If `out` exists and may not be replaced, if timm cannot load the network from
            a folder, or if the ONNX file computes something else.
        BackboneError: If the network cannot take the head.
        ClinitError: If the model cannot be written; nothing is left behind then.
    """
    check_free(out, overwrite=overwrite)
    check_kind(model, out, onnx=onnx)
    is_file = out.suffix in (".npz", ".safetensors")
    found: list[OnnxCheck] = []
    if model.engine is None:
        count = model.head.weight.size + model.head.bias.size

        def write_file(draft: Path) -> None:
            draft.write_bytes(_head_file(model, out.suffix, with_memory=is_file))
    else:
        from clinit.headtrain.model import network as networks

        network, text = networks.network_of(model)
        count = sum(each.numel() for each in network.parameters())

        def write_file(draft: Path) -> None:
            networks.write_weights(network, text, draft)

    def write_folder(draft: Path) -> None:
        if model.engine is None:
            write_file(draft / MODEL_FILE)
        else:
            networks.write_for_timm(network, text, model, draft)
        if onnx:
            from clinit.headtrain.model.onnx import write_onnx

            found.append(write_onnx(network, model, text, draft / ONNX_FILE))
        if model.memory is not None:
            (draft / MEMORY_FILE).write_bytes(memory_bytes(model.memory))
        (draft / CARD_FILE).write_text(card(model), encoding="utf-8")

    if is_file:
        commit_file(out, write_file)
    else:
        commit_folder(out, write_folder, overwrite=overwrite)
    kept = replace(model, origin=str(out), facts=read_facts(out))
    return Written(out, kept, count, found[0] if found else None)


def _head_file(model: Classifier, suffix: str, *, with_memory: bool) -> bytes:
    origin = facts_in_origin(model.facts, asdict(model.facts))
    head = replace(divided(model.head, model.facts.temperature), origin=origin)
    beside = {}
    if with_memory and model.memory is not None:
        beside[MEMORY_ARRAY] = np.frombuffer(memory_bytes(model.memory), np.uint8)
    return head_bytes(head, suffix, beside)


def check_kind(model: Classifier, out: Path, *, onnx: bool = False) -> None:
    """Check that a model has what a file of this name, or an ONNX file, contains.

    Raises:
        ModelError: If it has not.
        ValueError: If ONNX goes into a file.
    """
    if onnx:
        model.need_engine()
        if out.suffix in (".npz", ".safetensors"):
            raise ValueError(f"ONNX needs a folder, a head alone a file, got {out}")
    if out.suffix == ".npz" and model.engine is not None:
        raise ModelError(
            f"{out} can contain a head alone, but {model.origin} has a network",
            remedy="Write a folder or a file that ends in .safetensors; `clinit export MODEL --out"
            " FILE.npz` writes its head.",
        )


def check_free(out: Path, *, overwrite: bool = False) -> None:
    """Check that a model, or a head alone, can be written to `out`.

    Args:
        out: A folder or a file.
        overwrite: Whether an existing model or head may be replaced.

    Raises:
        ModelError: If `out` exists and may not be replaced.
    """
    occupied.check_free(out, "model", _foreign, ModelError, overwrite=overwrite)


def check_apart(writes: Path, reads: Path) -> None:
    """Check that a path to write is not in a folder that is only read.

    Raises:
        ModelError: If `writes` is `reads` or in it.
    """
    place, other = writes.resolve(), reads.resolve()
    if place == other or other in place.parents:
        raise ModelError(
            f"{writes} is in {reads}, which is only read",
            remedy="Choose another place for the new model (`--out`) or for features"
            " (`--features`).",
        )


def _foreign(path: Path) -> str | None:
    """Return why an existing file or folder is no model; None for a model."""
    others = sorted({each.name for each in path.iterdir()} - _FILES) if is_folder(path) else []
    if others:
        return f"it holds {', '.join(others[:3])}, which does not belong to a model folder"
    file = path / MODEL_FILE if is_folder(path) else path
    if foreign_to_head(file) is None:
        return None  # a head alone may be replaced, too
    if is_head_file(file):
        return "it is not a head written by clinit"
    try:
        read_facts(path)
    except (ModelError, StorageError):
        return "it is no model"
    return None
