"""The files of a model: a safetensors file, alone or in a folder with what timm and people need.

    model.safetensors    the state dict of the network, and what its classes are
    config.json          what `timm.create_model("local-dir:FOLDER", pretrained=True)` reads
    README.md            the model card: `card.md` next to this file, filled in
    model.onnx           the same network for other runtimes, where it was asked for
    memory.safetensors   what later classes need of the earlier ones, where it was asked for

timm loads `model.safetensors` without clinit, and clinit needs nothing else. A folder is written
under a temporary name and renamed: it is whole, or not there. Other files in it are left alone.

`config.json` has the form of timm's models on the Hugging Face Hub (`timm.models.save_for_hf`).
clinit believes the description in the model file alone, and refuses a folder where the two
disagree.

What a safetensors file says of itself is a sealed JSON document under one key of its metadata:
safetensors writes several keys in a random order, and equal models should be equal files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as save_arrays
from safetensors.torch import save as save_state
from torch import nn

from clinit.errors import ModelError, StorageError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import foreign_to_head
from clinit.extract.network.backbone import Backbone, BackboneConfig, load_backbone, state_sha256
from clinit.files import paths as occupied
from clinit.files.commit import commit_file, commit_folder
from clinit.files.documents import DocumentKind
from clinit.files.text import TextFileError, read_text
from clinit.headtrain.model.card import card
from clinit.headtrain.model.facts import METADATA, ForTimm, ModelFacts
from clinit.headtrain.model.memory import ARRAYS, ROWS, Memory, check_backbone, not_remembered
from clinit.headtrain.model.model import Model, checked_network
from clinit.headtrain.model.onnx import OnnxCheck, write_onnx
from clinit.headtrain.temperature import divided
from clinit.machine import choose_device
from clinit.words import contrast_digests

MODEL_FILE, CONFIG_FILE, CARD_FILE = "model.safetensors", "config.json", "README.md"
ONNX_FILE, MEMORY_FILE = "model.onnx", "memory.safetensors"
_FILES = frozenset({MODEL_FILE, CONFIG_FILE, CARD_FILE, ONNX_FILE, MEMORY_FILE})
_TOLERANCE = 1e-5
"""Between the logits of the two networks, relative to the largest."""
_OF_THE_NETWORK = ("pool_size", "first_conv", "classifier", "fixed_input_size")
"""What of timm's registry describes the network, whatever weights are in it."""
_MEMORY_KEY = "clinit_memory"
_MEMORY_FACTS = ("class_names", "averaged", "freedom", "exact", "backbone")
_MEMORY = DocumentKind(
    title="the description of what a model remembers",
    format="clinit-memory/1",
    error=ModelError,
    remedy=not_remembered("").remedy,
)


def open_model(path: str | os.PathLike[str], *, device: str = "auto") -> Model:
    """Open a model folder or file of `clinit export`.

    Raises:
        ModelError: If there is none, or it or its memory is damaged or of another backbone.
        BackboneError: If this version of timm cannot build the network.
        DeviceError: If the device is absent.
    """
    facts = read_facts(path := Path(path))
    backbone, memory = read_network(path, facts, device), memory_of(path, facts)
    assert backbone.head is not None
    head = replace(backbone.head, class_names=facts.class_names)
    if facts.temperature is not None:
        head = facts.temperature.multiplied(head)
    model = Model(facts, backbone, head, memory, str(path))
    if memory is not None:
        check_backbone(model.depends_on, memory.backbone)
    return model


def read_facts(path: Path) -> ModelFacts:
    """Read what a model folder or a model file says about itself.

    Raises:
        ModelError: If there is no model at `path`, or its folder contradicts its file.
    """
    is_folder = path.is_dir()
    file = path / MODEL_FILE if is_folder else path
    if is_folder and not file.exists():
        run = path if (path / "run.json").is_file() else "RUN"
        raise ModelError(
            f"{path} is a folder without a {MODEL_FILE}: it is not a model",
            remedy=f"Give one that `clinit export {run} --out FOLDER` has written.",
        )
    if file.suffix == ".onnx":
        raise ModelError(
            f"{file} is an ONNX file, not one of weights",
            remedy="Give it to `clinit predict`; in Python, to"
            " `clinit.headtrain.model.onnx.load_onnx`.",
        )
    if not file.is_file():
        raise _no_model(f"no model file at {file}")
    with _opened(file, "a model file", _no_model) as opened:
        text = (opened.metadata() or {}).get(METADATA)
    if text is None:
        raise _no_model(f"{file} does not name its classes: it is no file of `clinit export`")
    facts = ModelFacts.parse(text, file)
    if is_folder:
        _check_config(path / CONFIG_FILE, facts.folder_config() if facts.timm else None, file)
    return facts


def _check_config(config: Path, told: dict[str, Any] | None, file: Path) -> None:
    """Check that `config.json` says what the model file tells; None of an earlier version."""
    remedy = f"Give the file, if it is one of `clinit export`: {file}; or write the folder again."
    try:
        found = json.loads(read_text(config))
    except (TextFileError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {config}: {error}", remedy=remedy) from error
    expected = found if told is None else json.loads(json.dumps(told))
    if found != expected:
        both = {**expected, **found} if isinstance(found, dict) else ()
        differing = [name for name in both if expected.get(name) != found.get(name)]
        raise ModelError(
            f"{config} and the model file beside it disagree about"
            f" {', '.join(differing) or 'everything'}",
            remedy=remedy,
        )


def _no_model(why: str) -> ModelError:
    return ModelError(why, remedy="Write one with `clinit export RUN --out FILE`.")


def read_network(path: Path, facts: ModelFacts, device: str) -> Backbone:
    """Read the network at `path`, which describes itself by `facts`; its classifier is included.

    Raises:
        ModelError: If it has changed since it was written.
        BackboneError: If this version of timm cannot build it.
        DeviceError: If the device is absent.
    """
    file = path / MODEL_FILE if path.is_dir() else path
    config = BackboneConfig(
        name=facts.backbone,
        weights=file,
        model_args={**facts.model_args, "num_classes": facts.num_classes},
        device=str(choose_device(device)),
        autocast=facts.autocast,
    )
    backbone = load_backbone(config)
    if backbone.weights_sha256 != facts.weights:
        found, exported = contrast_digests(backbone.weights_sha256, facts.weights)
        raise ModelError(
            f"the weights in {file} are not those that were exported: SHA-256 {found} instead of"
            f" {exported}",
            remedy="Export the run again; this file is damaged.",
        )
    return backbone


def memory_of(path: Path, facts: ModelFacts) -> Memory | None:
    """Return what the model at `path` remembers; None for a file, or a folder without a memory.

    Raises:
        ModelError: If its memory is damaged, or of other classes.
    """
    file = path / MEMORY_FILE
    if not os.path.lexists(file):  # a link that leads nowhere is a memory that is lost
        return None
    memory = read_memory(file)
    if memory.class_names != facts.class_names:
        raise not_remembered(
            f"{file} remembers {len(memory.class_names):,} classes that are not the"
            f" {facts.num_classes:,} of the model"
        )
    return memory


def read_memory(path: Path) -> Memory:
    """Read what a model remembers.

    Raises:
        StorageError: If there is no such file, or it may not be read.
        ModelError: If it is damaged.
    """
    with _opened(path, "the memory of a model", not_remembered) as file:
        text = (file.metadata() or {}).get(_MEMORY_KEY)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if text is None:
        raise not_remembered(
            f"{path} does not describe what it remembers: clinit has not written it"
        )
    facts = _MEMORY.parse(text, origin=f"the description in {path}")
    if facts.pop("tensors") != _digest(tensors):
        raise not_remembered(f"{path} has changed since it was written")
    names = facts["class_names"] = tuple(facts["class_names"])
    facts |= {name: tensors.get(name) for name in ARRAYS}
    facts |= {n: FeatureSet(tensors[n], tensors[f"{n}_labels"], names) for n in ROWS}
    return Memory(**facts)


@contextmanager
def _opened(path: Path, kind: str, refusal: Callable[[str], ModelError]) -> Iterator[Any]:
    """Open a safetensors file."""
    occupied.check_readable(path, ModelError)
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise refusal(f"{path} is not {kind}: {error}") from error


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """What was written of a model."""

    facts: ModelFacts
    num_parameters: int
    onnx: OnnxCheck | None
    """How its ONNX form compares; None where it has none."""


def write_model(
    model: Model, out: Path, *, compare_on: Sequence[Path] | None = None, overwrite: bool = False
) -> Written:
    """Write the network of a model with its classes to `out`.

    A folder holds what the model remembers; a file, whose name ends in .safetensors, does not.

    Args:
        model: Its head is written divided by its temperature.
        out: The folder or the file; there must be nothing yet, unless it is overwritten.
        compare_on: Write the network as ONNX into the folder too, and compare it on these images,
            or on noise without any; None for no ONNX form.
        overwrite: Whether a model that is there is replaced.

    Raises:
        ModelError: If there is something at `out` that may not be replaced, timm cannot have the
            network from a folder, or its ONNX form computes something else.
        BackboneError: If the network cannot hold the head.
        ClinitError: If it cannot be written; nothing is left behind then.
    """
    network = checked_network(model, divided(model.head, model.facts.temperature))
    weights = state_sha256(network.state_dict())
    facts = replace(model.facts, weights=weights, timm=_for_timm(network, model.facts.model_args))
    check = write_network(
        network, facts, out, memory=model.memory, compare_on=compare_on, overwrite=overwrite
    )
    return Written(facts, sum(each.numel() for each in network.parameters()), check)


def _for_timm(network: nn.Module, model_args: Mapping[str, Any]) -> ForTimm:
    """Return what timm reads of a network that the model file has no use for."""
    registered: Mapping[str, Any] = network.pretrained_cfg  # type: ignore[assignment]
    told = {"custom_load": False, **{name: registered.get(name) for name in _OF_THE_NETWORK}}
    if model_args.get("dynamic_img_size") or model_args.get("strict_img_size") is False:
        told["fixed_input_size"] = False
    as_read = json.loads(json.dumps(told))  # JSON has no tuples
    return {"num_features": int(network.num_features), "pretrained_cfg": as_read}  # type: ignore[arg-type]


def write_network(
    network: nn.Module,
    facts: ModelFacts,
    out: Path,
    *,
    memory: Memory | None = None,
    compare_on: Sequence[Path] | None = None,
    overwrite: bool = False,
) -> OnnxCheck | None:
    """Write a network that has its classifier to `out`, as in `write_model`."""
    check_free(out, overwrite=overwrite)
    check = None

    def write_weights(draft: Path) -> None:
        # Clones: tensors that share memory are not written.
        state = {n: value.cpu().contiguous().clone() for n, value in network.state_dict().items()}
        draft.write_bytes(save_state(state, metadata={METADATA: facts.text()}))

    def write_folder(draft: Path) -> None:
        nonlocal check
        write_weights(draft / MODEL_FILE)
        config = json.dumps(facts.folder_config(), indent=2, allow_nan=False) + "\n"
        (draft / CONFIG_FILE).write_text(config, encoding="utf-8")
        if why := _difference_in_timm(draft, network, facts):
            raise ModelError(
                f"timm does not build the same {facts.backbone} from a folder:"
                f" {' '.join(why.split())}",
                remedy="Export to a file instead of a folder: `--out FILE.safetensors`.",
            )
        if compare_on is not None:
            check = write_onnx(network, facts, draft / ONNX_FILE, compare_on)
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
    except Exception as error:  # whatever an architecture makes of its arguments
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


def write_memory(memory: Memory, path: Path) -> None:
    """Write what a model remembers to a file of the draft of its folder."""
    tensors = {n: np.ascontiguousarray(t) for n, t in memory.tensors().items()}
    facts = {name: getattr(memory, name) for name in _MEMORY_FACTS} | {"tensors": _digest(tensors)}
    # A name that is no UTF-8 has half characters, which JSON can hold escaped alone.
    text = _MEMORY.text(facts, indent=None).encode(errors="backslashreplace").decode()
    path.write_bytes(save_arrays(tensors, metadata={_MEMORY_KEY: text}))


def _digest(tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(np.ascontiguousarray(tensor).data)
    return digest.hexdigest()


def check_free(out: Path, *, overwrite: bool = False) -> None:
    """Check that a model, or a head alone, can be written to `out`.

    Args:
        out: A folder or a file.
        overwrite: Whether a model or a head that is there may be replaced.

    Raises:
        ModelError: If there is something that may not be replaced.
    """
    occupied.check_free(out, "model", _foreign, ModelError, overwrite=overwrite)


def _foreign(path: Path) -> str | None:
    """Return why what is there is no model, or what lies in it beside one; None for a model."""
    if path.is_dir():
        if others := sorted({each.name for each in path.iterdir()} - _FILES):
            return f"it holds {', '.join(others[:3])}, which is not of a model folder"
    elif foreign_to_head(path) is None:
        return None  # a head alone is exported to the same place
    try:
        read_facts(path / MODEL_FILE if path.is_dir() else path)
    except (ModelError, StorageError):
        return "it is no model"
    return None
