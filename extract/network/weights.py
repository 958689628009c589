"""A network of timm with its weights: timm's own, or from a file.

Names and numbers in a file of any size describe a network. So it is built without memory first,
on PyTorch's meta device, and one that is far larger than its weights is not built.
The library of the Hub tries each file six times, with pauses, before it looks into its cache; so
the Hub is asked once before, and if it does not answer only the cache is searched.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import timm
import timm.models
import torch
from huggingface_hub import constants, get_session
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from clinit.errors import BackboneError, ClinitError, MachineError
from clinit.files.paths import check_readable
from clinit.machine import out_of_memory

MARGIN = 4
"""How many times larger than its weights a network may be: position embeddings are resampled to
other sizes, and tables of positions stand in no file."""
_FREE_TENSORS, _FREE_VALUES = 1_000, 10_000_000
"""Allowance of any network."""
_PAUSES_S = (0.0, 1.0, 1.0)
"""Seconds before each request; a Hub that refuses all of them counts as out of reach."""


def pretrained_network(name: str, model_args: Mapping[str, Any]) -> nn.Module:
    """Return the network with timm's own weights, from the cache of downloads or from the Hub.

    Raises:
        BackboneError: If they cannot be had.
        MachineError: If the memory does not suffice.
    """
    if model_args:
        with torch.device("meta"):
            held = _size(dict(timm.create_model(name).named_parameters()))
        _check_size(name, model_args, held)
    with hub_or_cache() as why:
        try:
            network: nn.Module = timm.create_model(name, pretrained=True, **model_args)
        except Exception as error:  # timm and its hub client raise a dozen types
            if why is None or out_of_memory(error):
                raise failure(
                    error,
                    f"timm cannot give pretrained weights of {name}",
                    "Give a checkpoint with `--weights FILE`, or check the network connection.",
                ) from error
            config = timm.get_pretrained_cfg(name, allow_unregistered=True)
            source = getattr(config, "hf_hub_id", None) or "REPOSITORY"
            raise BackboneError(
                f"no weights of {name}: {why}, and they are not in its cache,"
                f" {constants.HF_HUB_CACHE}",
                remedy=f"On a machine with a network, `hf download {source} model.safetensors"
                " --local-dir .` gets the file; give it with `--weights model.safetensors`.",
            ) from error
    return network


def network_of_file(name: str, path: Path, model_args: Mapping[str, Any]) -> nn.Module:
    """Return the network with the weights of a file.

    Raises:
        BackboneError: If there are none, or they are of another network.
        MachineError: If the memory does not suffice.
    """
    state = _read_state(path)
    arguments = dict(model_args)
    prefix = getattr(timm.get_pretrained_cfg(name, allow_unregistered=True), "classifier", None)
    classifier = state.get(f"{prefix}.weight") if isinstance(prefix, str) else None
    if isinstance(classifier, Tensor):
        arguments.setdefault("num_classes", int(classifier.shape[0]))
    _check_size(name, arguments, _size(state))
    try:
        network: nn.Module = timm.create_model(name, pretrained=False, **arguments)
    except Exception as error:
        raise _not_built(error, name, arguments) from error
    try:
        timm.models.load_checkpoint(network, str(path), strict=True, weights_only=True)
    except Exception as error:  # checkpoint filters raise what they meet
        what = f"{path} does not fit {name}: it holds {len(state):,} tensors such as {_some(state)}"
        remedy = (
            "Check `--backbone` and `--model-arg` against the model that was saved: one without a"
            " classifier is built with `--model-arg num_classes=0`."
        )
        raise failure(error, what, remedy) from error
    return network


def _read_state(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise BackboneError(
            f"no weights at {path}", remedy="Give a .safetensors or .pth file with `--weights`."
        )
    check_readable(path, BackboneError)
    try:
        state: Mapping[str, Any] = timm.models.load_state_dict(str(path), weights_only=True)
    except Exception as error:  # unpickling and safetensors raise many types
        raise failure(
            error,
            f"{path} cannot be read as weights",
            "A checkpoint is a safetensors file, or a .pth file that holds tensors only"
            " (`weights_only=True`), no web page and no pointer of Git LFS: code in a checkpoint is"
            " never run.",
        ) from error
    if not any(isinstance(value, Tensor) for value in state.values()):
        raise BackboneError(
            f"{path} holds no tensor, but {_some(state) or 'nothing'}",
            remedy="Give the weights alone: a mapping of names to tensors, or one below the key"
            " state_dict or model.",
        )
    return state


def _some(names: Mapping[str, Any]) -> str:
    return ", ".join(map(str, islice(names, 2)))


def _size(state: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of tensors in weights, and the number of values."""
    tensors = [value for value in state.values() if isinstance(value, Tensor)]
    return len(tensors), sum(tensor.numel() for tensor in tensors)


def _check_size(name: str, arguments: Mapping[str, Any], held: tuple[int, int]) -> None:
    """Check that a network is not far larger than its weights: build it without memory.

    Raises:
        ClinitError: If it is, or cannot be built.
    """
    try:
        with _counted(name, *held), torch.device("meta"):
            timm.create_model(name, pretrained=False, **arguments)
    except ClinitError:
        raise
    except Exception as error:  # an index that is none, a division by zero, whatever they lead to
        raise _not_built(error, name, arguments) from error


@contextmanager
def _counted(name: str, held_tensors: int, held_values: int) -> Iterator[None]:
    """Stop the construction of modules as soon as they hold too much."""
    tensors = values = 0

    def count(module: nn.Module, key: str, value: Tensor | None) -> None:
        nonlocal tensors, values
        if value is None:
            return
        tensors, values = tensors + 1, values + value.numel()
        if values > MARGIN * held_values + _FREE_VALUES or (
            tensors > MARGIN * held_tensors + _FREE_TENSORS
        ):
            raise BackboneError(
                f"{name} with these arguments has more than {MARGIN} times what its weights hold,"
                f" {held_values:,} values in {held_tensors:,} tensors",
                remedy="Check `--backbone` and `--model-arg` against the model that was saved; a"
                " file that asks for this by itself is not to be trusted.",
            )

    handles = [
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _not_built(error: Exception, name: str, arguments: Mapping[str, Any]) -> ClinitError:
    what = f"timm cannot build {name} with {dict(arguments)}"
    return failure(error, what, "Check `--backbone` and `--model-arg`.")


def failure(error: Exception, what: str, remedy: str) -> ClinitError:
    """Return what to raise for an error of timm: a `MachineError` if memory is short."""
    if out_of_memory(error):
        return MachineError(
            f"not enough memory: {what}",
            remedy="Free memory, or choose a smaller backbone; then run the same command again.",
        )
    text = " ".join(str(error).split())[:300]
    plain = isinstance(error, RuntimeError | ValueError | OSError | AssertionError)
    why = text if text and plain else f"{type(error).__name__}: {text}".rstrip(": ")
    return BackboneError(f"{what}: {why}", remedy=remedy)


@contextmanager
def hub_or_cache() -> Iterator[str | None]:
    """Let downloads search only the cache if the Hub is out of reach; yield why it is.

    Asked as the library asks: with its proxies, certificates and time limit (HF_HUB_ETAG_TIMEOUT,
    ten seconds).
    """
    if constants.HF_HUB_OFFLINE:
        yield "HF_HUB_OFFLINE is set"
        return
    why = None
    for pause_s in _PAUSES_S:
        time.sleep(pause_s)
        try:
            get_session().head(constants.ENDPOINT, timeout=float(constants.HF_HUB_ETAG_TIMEOUT))
        except Exception as error:  # of whichever client this version of the library has
            words = " ".join(str(error).split()) or type(error).__name__
            why = f"{constants.ENDPOINT} cannot be reached ({words})"
        else:
            why = None
            break
    constants.HF_HUB_OFFLINE = why is not None
    try:
        yield why
    finally:
        constants.HF_HUB_OFFLINE = False
