"""A network of timm with its weights: timm's own, or those of a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import timm.models
from huggingface_hub import constants
from torch import Tensor, nn

from clinit.errors import BackboneError, ClinitError, MachineError
from clinit.extract.hub import hub_or_cache
from clinit.extract.network_size import NetworkSize, check_size
from clinit.extract.weights_contents import contents, difference, kind_of_file, known_network
from clinit.files.paths import check_readable
from clinit.machine import out_of_memory


def pretrained_network(name: str, model_args: Mapping[str, Any]) -> nn.Module:
    """Return the network with timm's own weights, from the cache of downloads or from the Hub.

    Raises:
        BackboneError: If they cannot be had.
        MachineError: If the memory does not suffice.
    """
    if model_args:
        _check_size(name, model_args, None)
    with hub_or_cache() as why:
        try:
            network: nn.Module = timm.create_model(name, pretrained=True, **model_args)
        except Exception as error:  # timm and its hub client raise a dozen types
            if why is not None and not out_of_memory(error):
                raise _not_downloaded(name, why) from error
            raise failure(
                error,
                f"timm cannot give pretrained weights of {name}",
                "Give a checkpoint with `--weights FILE`, or check the network connection.",
            ) from error
    return network


def _not_downloaded(name: str, why: str) -> BackboneError:
    source = getattr(timm.get_pretrained_cfg(name, allow_unregistered=True), "hf_hub_id", None)
    advice = "Give a checkpoint with `--weights FILE`."
    if source:
        advice = (
            f"Where there is a network, `hf download {source} model.safetensors --local-dir .`"
            " gets the file; give it with `--weights model.safetensors`."
        )
    return BackboneError(
        f"no weights of {name}: {why}, and they are not in its cache, {constants.HF_HUB_CACHE}",
        remedy=advice,
    )


def network_of_file(name: str, path: Path, model_args: Mapping[str, Any]) -> nn.Module:
    """Return the network with the weights of a file.

    Raises:
        BackboneError: If there are none, or they are of another network.
        MachineError: If the memory does not suffice.
    """
    state = _read_state(path)
    arguments = dict(model_args)
    rows = _classifier_rows(name, state)
    if rows is not None:
        arguments.setdefault("num_classes", rows)
    _check_size(name, arguments, NetworkSize.of_state(state))
    try:
        network: nn.Module = timm.create_model(name, pretrained=False, **arguments)
    except Exception as error:
        raise _not_built(error, name, arguments) from error
    try:
        timm.models.load_checkpoint(network, str(path), strict=True, weights_only=True)
    except Exception as error:  # checkpoint filters raise what they meet
        raise _misfit(error, name, path, state, network) from error
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
        kind = kind_of_file(path)
        raise failure(
            error,
            f"{path} cannot be read as weights" + (f" (it looks like {kind})" if kind else ""),
            "A checkpoint is a safetensors file, or a .pth file that holds tensors only"
            " (`weights_only=True`): code in a checkpoint is never run.",
        ) from error
    if not any(isinstance(value, Tensor) for value in state.values()):
        raise BackboneError(
            f"{path} {contents(state)}",
            remedy="Give the weights alone: a mapping of names to tensors, or one below the key"
            " state_dict or model.",
        )
    return state


def _misfit(
    error: Exception, name: str, path: Path, state: Mapping[str, Any], network: nn.Module
) -> ClinitError:
    """Return what is to be said of weights that a network refuses: what they are instead."""
    what = f"{path} does not fit {name}"
    found = known_network(state)
    if out_of_memory(error):
        return failure(error, what, "")
    expected = network.state_dict()
    told = f"{what}: it {contents(state)}" + (f", those of {found}" if found else "")
    why = difference(state, expected) or _reason(error)
    if found is not None and found != name.partition(".")[0]:
        remedy = f"Give `--backbone {found}`, or weights of {name}."
    else:
        remedy = "Check `--backbone` and `--model-arg` against the model that was saved."
    return BackboneError(f"{told}; {why}", remedy=remedy)


def _check_size(name: str, arguments: Mapping[str, Any], weights: NetworkSize | None) -> None:
    try:
        check_size(name, arguments, weights)
    except ClinitError:
        raise
    except Exception as error:  # an index that is none, a division by zero, whatever they lead to
        raise _not_built(error, name, arguments) from error


def _not_built(error: Exception, name: str, arguments: Mapping[str, Any]) -> ClinitError:
    return failure(
        error,
        f"timm cannot build {name} with {dict(arguments)}",
        "Check `--backbone` and `--model-arg`.",
    )


def _classifier_rows(name: str, state: Mapping[str, Any]) -> int | None:
    """Return the number of classifier rows in a checkpoint, None where it has another layout."""
    classifier = timm.get_pretrained_cfg(name, allow_unregistered=True)
    prefix = getattr(classifier, "classifier", None)
    weight = state.get(f"{prefix}.weight") if isinstance(prefix, str) else None
    return int(weight.shape[0]) if isinstance(weight, Tensor) else None


def failure(error: Exception, what: str, remedy: str) -> ClinitError:
    """Return what is to be said of an error of timm: it is the machine's where memory is short."""
    if out_of_memory(error):
        return MachineError(
            f"not enough memory: {what}",
            remedy="Free memory, or choose a smaller backbone; then run the same command again.",
        )
    return BackboneError(f"{what}: {_reason(error)}", remedy=remedy)


def _reason(error: Exception) -> str:
    """Return the message of an error as one line, with its type where that says more."""
    text = " ".join(str(error).split())[:300]
    plain = isinstance(error, RuntimeError | ValueError | OSError | AssertionError)
    return text if text and plain else f"{type(error).__name__}: {text}".rstrip(": ")
