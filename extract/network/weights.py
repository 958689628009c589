"""A network of timm with its weights: timm's own, or those of a file.

What a network is made of is said by names and numbers in a file of any size. So it is built without
memory first, on PyTorch's meta device, and one that is far larger than its weights is not built.
The library of the Hub tries each file six times, with pauses, before it looks into its cache; so
the Hub is asked once before, and if it does not answer the cache alone is looked into.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
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
    if out_of_memory(error):
        return failure(error, what, "")
    why = difference(state, network.state_dict()) or _reason(error)
    return BackboneError(
        f"{what}: it {contents(state)}; {why}",
        remedy="Check `--backbone` and `--model-arg` against the model that was saved.",
    )


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


_SHOWN = 2
"""Names that stand for all."""
_BEGINNINGS = {
    b"version https://git-lfs": "a pointer of Git LFS, not the weights that it stands for",
    b"<": "a web page",
    b"\x89HDF": "an HDF5 file",
    b"{": "a JSON file",
}


def kind_of_file(path: Path) -> str | None:
    """Return what a file is, if it begins like something that is no checkpoint."""
    try:
        with path.open("rb") as file:
            begin = file.read(64).lstrip()
    except OSError:
        return None
    kinds = (kind for start, kind in _BEGINNINGS.items() if begin.startswith(start))
    return next(kinds, None)


def contents(state: Mapping[str, Any]) -> str:
    """Return what weights consist of: how many tensors, and the names of some."""
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    others = [name for name in state if name not in tensors]
    if not tensors:
        return f"holds no tensor, but {_some(others)}" if others else "holds nothing"
    shown = [name for name, value in tensors.items() if value.ndim > 1] or [*tensors]
    several = f"{len(tensors):,} tensors such as" if len(tensors) > 1 else "1 tensor,"
    told = f"holds {several} {_named(shown)}"
    if tensors.keys() == {"weight", "bias"} and tensors["weight"].ndim == 2:
        rows, dim = tensors["weight"].shape
        return f"{told} (a head of {rows:,} classes on {dim:,} features, without a backbone)"
    if "optimizer" in others:
        return f"{told}, and what training keeps: {_some(others)}"
    prefixes = {name.partition(".")[0] for name in tensors}
    if len(tensors) > 1 and len(prefixes) == 1:
        return f"{told} (all names begin with {prefixes.pop()}.)"
    return told


def difference(state: Mapping[str, Any], expected: Mapping[str, Tensor]) -> str:
    """Return where weights differ from what a network expects; empty where they do not."""
    found = {name: tuple(v.shape) for name, v in state.items() if isinstance(v, Tensor)}
    wanted = {name: tuple(value.shape) for name, value in expected.items()}
    shared = [name for name in wanted if name in found]
    other = [name for name in shared if found[name] != wanted[name]]
    told = []
    if len(shared) < len(wanted):
        lacking = [name for name in wanted if name not in found]
        told.append(f"{len(lacking):,} of {len(wanted):,} expected are missing: {_some(lacking)}")
    if other:
        first = other[0]
        told.append(
            f"{len(other):,} of {len(wanted):,} have another shape: {first} is {found[first]},"
            f" expected {wanted[first]}"
        )
    return "; ".join(told)


def _named(names: list[str]) -> str:
    return " and ".join(names[:_SHOWN])


def _some(names: Mapping[str, Any] | list[str]) -> str:
    listed = [*names]
    return ", ".join(listed[:_SHOWN]) + (", …" if len(listed) > _SHOWN else "")


MARGIN = 4
"""How many times larger than its weights a network may be: position embeddings are resampled to
other sizes, and tables of positions stand in no file."""
_FREE = 10_000_000
"""Values that any network may have."""
_FREE_TENSORS = 1_000


@dataclass(frozen=True, slots=True)
class NetworkSize:
    """What a network or its weights consist of."""

    tensors: int
    values: int

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> NetworkSize:
        """Return the size of weights."""
        tensors = [value for value in state.values() if isinstance(value, Tensor)]
        return cls(len(tensors), sum(tensor.numel() for tensor in tensors))

    @classmethod
    def of_model(cls, name: str) -> NetworkSize:
        """Return the size of timm's own model of a name."""
        with torch.device("meta"):
            network: nn.Module = timm.create_model(name)
        return cls.of_state(dict(network.named_parameters()))


def check_size(name: str, arguments: Mapping[str, Any], weights: NetworkSize | None) -> None:
    """Check that a network is not far larger than its weights.

    Args:
        name: timm's name of the network.
        arguments: Keyword arguments of `timm.create_model`.
        weights: What is to be loaded into it; None for timm's own weights of that name.

    Raises:
        BackboneError: If it is.
        Exception: Whatever timm raises: a network that cannot be counted is not to be built.
    """
    held = NetworkSize.of_model(name) if weights is None else weights
    with _counted(name, held), torch.device("meta"):
        timm.create_model(name, pretrained=False, **arguments)


@contextmanager
def _counted(name: str, weights: NetworkSize) -> Iterator[None]:
    """Stop the construction of modules as soon as they hold too much."""
    tensors = values = 0

    def count(module: nn.Module, key: str, value: Tensor | None) -> None:
        nonlocal tensors, values
        if value is None:
            return
        tensors, values = tensors + 1, values + value.numel()
        if values > MARGIN * weights.values + _FREE or (
            tensors > MARGIN * weights.tensors + _FREE_TENSORS
        ):
            raise BackboneError(
                f"{name} with these arguments has more than {MARGIN} times what its weights hold,"
                f" {weights.values:,} values in {weights.tensors:,} tensors",
                remedy="Check `--backbone` and `--model-arg` against the model that was saved; a"
                " file that asks for this by itself is not to be trusted.",
            )

    registers: tuple[Callable[..., Any], ...] = (
        register_module_parameter_registration_hook,
        register_module_buffer_registration_hook,
    )
    handles = [register(count) for register in registers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


_TRIES = 3
"""Requests before a Hub that refuses them counts as out of reach; a name may be found later."""
_PAUSE_S = 1.0


@contextmanager
def hub_or_cache() -> Iterator[str | None]:
    """Let downloads look into the cache alone where the Hub is out of reach; yield why it is."""
    why = why_unreachable()
    if why is None or constants.HF_HUB_OFFLINE:
        yield why
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield why
    finally:
        constants.HF_HUB_OFFLINE = False


def why_unreachable() -> str | None:
    """Return why the Hub cannot be reached; None where it answers, whatever it says.

    Asked as the library asks: with its proxies, certificates and time limit (HF_HUB_ETAG_TIMEOUT,
    ten seconds). Names are resolved without a limit, so a thread is waited for.
    """
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    limit = float(constants.HF_HUB_ETAG_TIMEOUT)
    answers: Queue[str | None] = Queue()
    Thread(target=_ask, args=(answers, limit), name="hub", daemon=True).start()
    try:
        why = answers.get(timeout=limit)
    except Empty:
        why = f"no answer in {limit:g} s"
    return why and f"{constants.ENDPOINT} cannot be reached ({why})"


def _ask(answers: Queue[str | None], limit: float) -> None:
    for number in range(_TRIES):
        if number:
            time.sleep(_PAUSE_S)
        try:
            get_session().head(constants.ENDPOINT, timeout=limit)
        except Exception as error:  # of whichever client this version of the library has
            why = " ".join(str(error).split()) or type(error).__name__
        else:
            answers.put(None)
            return
    answers.put(why)
