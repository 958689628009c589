"""Read a model: the facts in its file, its network, and its memory.

The facts in a safetensors file are a sealed JSON document under one key of its metadata.
clinit reads no other file of a model folder: `config.json` is for timm.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from safetensors import SafetensorError, safe_open

from clinit.errors import ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.network.backbone import (
    Backbone,
    BackboneConfig,
    load_backbone,
    read_model_args,
)
from clinit.extract.network.checkpoint import read_checkpoint
from clinit.files.paths import check_readable, exists, instead_of, is_file, is_folder
from clinit.files.tensors import read_tensors
from clinit.headtrain.model import memory as remembered
from clinit.headtrain.model.facts import DOCUMENT, METADATA, ModelFacts
from clinit.headtrain.model.memory import Memory, check_backbone
from clinit.headtrain.model.model import Model
from clinit.headtrain.model.settings import WRITES_MODELS
from clinit.machine import choose_device
from clinit.words import contrast_digests

MODEL_FILE, MEMORY_FILE = "model.safetensors", "memory.safetensors"


class _Told(TypedDict):
    """Fields that are checked or converted before `ModelFacts` is built."""

    model_args: str
    fingerprint: dict[str, str]


def open_model(path: str | os.PathLike[str], *, device: str = "auto") -> Model:
    """Open a model folder or file of `clinit export`.

    Raises:
        ModelError: If the model is missing, if the model or its memory is damaged, or if the
            memory belongs to another backbone.
        BackboneError: If this version of timm cannot build the network.
        DeviceError: If the device is absent.
    """
    path = Path(path)
    with ExitStack() as stack:
        held = _held(path, stack)
        facts = read_facts(path, held)
        backbone, memory = read_network(path, facts, device, held), memory_of(path, facts, held)
    assert backbone.head is not None
    head = replace(backbone.head, class_names=facts.class_names)
    if facts.temperature is not None:
        head = facts.temperature.multiplied(head)
    model = Model(facts, backbone, head, memory, str(path))
    if memory is not None:
        check_backbone(model.depends_on, memory.backbone)
        if memory.dim != head.dim:
            raise remembered.DOCUMENT.refusal(
                f"{path} remembers features of {memory.dim:,} numbers, its network computes"
                f" {head.dim:,}"
            )
    return model


def _held(path: Path, stack: ExitStack) -> dict[str, Path]:
    """Open the files of a model folder until the stack ends; return other paths of them, by name.

    They stay those of one model if the folder is replaced while it is read. What cannot be opened
    has no path, and is reported by its reader.
    """
    held: dict[str, Path] = {}
    with suppress(OSError):
        while is_folder(path):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            for name in (MODEL_FILE, MEMORY_FILE):
                with suppress(OSError):
                    file = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
                    stack.callback(os.close, file)
                    held[name] = Path(f"/proc/self/fd/{file}")
            if os.path.samestat(path.stat(), os.fstat(folder)):
                break
            held.clear()
    return {name: place for name, place in held.items() if exists(place)}


def read_facts(path: Path, held: Mapping[str, Path] = {}) -> ModelFacts:
    """Read the facts in a model folder or a model file; `held` are open files of the folder.

    Raises:
        ModelError: If there is no model at `path`, or it is damaged.
    """
    file = path / MODEL_FILE if is_folder(path) else path
    if is_folder(path) and not exists(file):
        is_run = is_file(path / "run.json")
        raise ModelError(
            f"{path} is a folder without a {MODEL_FILE}: it is not a model",
            remedy=f"Make one of this run: `clinit export {path} --out FOLDER`."
            if is_run
            else WRITES_MODELS,
        )
    if file.suffix == ".onnx":
        raise ModelError(
            f"{file} is an ONNX file, not a file of weights",
            remedy="Give it to `clinit predict`; in Python, to"
            " `clinit.headtrain.model.onnx.load_onnx`.",
        )
    if not is_file(file):
        raise ModelError(f"no model at {file}", remedy=instead_of(file, WRITES_MODELS))
    check_readable(file, ModelError)
    try:
        with safe_open(held.get(MODEL_FILE, file), framework="numpy") as opened:
            text = (opened.metadata() or {}).get(METADATA)
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise _no_model(f"{file} is not a model file: {error}") from error
    if text is None:
        raise _no_model(f"{file} does not name its classes: it is no file of `clinit export`")
    return parse_facts(text, file)


def parse_facts(text: str, path: Path) -> ModelFacts:
    """Return the facts of `text`, found in the file at `path`.

    Raises:
        ModelError: If the facts are damaged, or contain arguments that a model file must not.
    """
    origin = f"the description in {path}"
    content = DOCUMENT.parse(text, origin=origin)
    told = DOCUMENT.convert(content, _Told, origin=origin)
    try:
        arguments = read_model_args(told["model_args"])
    except ValueError as error:
        raise ModelError(
            f"{path} contains a forbidden argument: {error}",
            remedy="Do not use this file. `clinit export` writes no such file.",
        ) from error
    content |= {"fingerprint": {"fields": told["fingerprint"]}, "model_args": arguments}
    return DOCUMENT.convert(content, ModelFacts, origin=origin)


def _no_model(why: str) -> ModelError:
    return ModelError(
        why,
        remedy=f"{WRITES_MODELS} `clinit add` takes a network of timm by `--backbone NAME"
        " --weights PATH`.",
    )


def read_network(
    path: Path,
    facts: ModelFacts,
    device: str,
    held: Mapping[str, Path] = {},
) -> Backbone:
    """Read the network at `path`, including its classifier, as described by `facts`.

    Raises:
        ModelError: If the network has changed since it was written.
        BackboneError: If this version of timm cannot build the network.
        DeviceError: If the device is absent.
    """
    file = path / MODEL_FILE if is_folder(path) else path
    config = BackboneConfig(
        name=facts.backbone,
        weights=file,
        model_args={**facts.model_args, "num_classes": facts.num_classes},
        device=str(choose_device(device)),
        autocast=facts.autocast,
    )
    backbone = load_backbone(config, read_checkpoint(file, held.get(MODEL_FILE)))
    if backbone.weights_sha256 != facts.weights:
        found, exported = contrast_digests(backbone.weights_sha256, facts.weights)
        raise ModelError(
            f"the weights in {file} differ from the exported weights: SHA-256 {found} instead of"
            f" {exported}",
            remedy="Export the run again; this file is damaged.",
        )
    return backbone


def memory_of(
    path: Path,
    facts: ModelFacts,
    held: Mapping[str, Path] = {},
) -> Memory | None:
    """Read the memory of the model at `path`; None for a file, or a folder without a memory.

    Raises:
        ModelError: If the memory is damaged, or has other classes.
    """
    file = path / MEMORY_FILE
    if MEMORY_FILE not in held and not os.path.lexists(file):
        return None  # but a broken link is a lost memory, which is an error
    try:
        memory = read_memory(held.get(MEMORY_FILE, file))
    except ModelError:
        memory = read_memory(file)  # fails too, and names the file
    if memory.class_names != facts.class_names:
        raise remembered.DOCUMENT.refusal(
            f"{file} remembers {len(memory.class_names):,} classes that differ from"
            f" the {facts.num_classes:,} of the model"
        )
    return memory


def read_memory(path: Path) -> Memory:
    """Read the memory of a model.

    Raises:
        StorageError: If the file is missing or may not be read.
        ModelError: If the file is damaged.
    """
    tensors, facts = read_tensors(
        path, remembered.DOCUMENT, remembered.METADATA, remembered.Facts, remembered.STORED
    )
    if "learnt" not in tensors:
        tensors |= {"learnt": tensors["kept"][:0], "learnt_labels": tensors["kept_labels"][:0]}
    fields: dict[str, Any] = {**facts, **{name: tensors[name] for name in remembered.ARRAYS}}
    for name in remembered.ROWS:
        labels, names = tensors[f"{name}_labels"], facts["class_names"]
        fields[name] = FeatureSet(tensors[name], labels, names)
    return Memory(**fields)
