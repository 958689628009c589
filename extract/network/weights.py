"""Build a timm network with pretrained weights, weights of a file, or a folder of the Hub.

The tensors of a .pth file may have other names than timm's, as in checkpoints of torchvision. If no
name is equal and all tensors have the sizes of timm's, in the same order, they are loaded by order.

The library of the Hugging Face Hub tries each file six times, with pauses, before it searches its
cache. So clinit first tries to reach the Hub; if that fails, the library searches only its cache.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import timm
import timm.models
from huggingface_hub import constants, get_session
from torch import Tensor, nn

from clinit.errors import BackboneError, ClinitError, MachineError
from clinit.files.paths import check_readable
from clinit.files.text import TextFileError, read_text
from clinit.machine import out_of_memory
from clinit.words import cut_short

_PAUSES_S = (0.0, 1.0, 1.0)
"""Seconds before each request; the Hub is out of reach if all requests fail."""

_Side = Annotated[int, msgspec.Meta(ge=1, le=4096)]
_Deviation = Annotated[float, msgspec.Meta(gt=0)]


class _DataConfig(msgspec.Struct, omit_defaults=True):
    """The transform of the images, in timm's terms."""

    input_size: tuple[Literal[3], _Side, _Side] | None = None
    interpolation: Literal["nearest", "bilinear", "bicubic"] | None = None
    crop_pct: Annotated[float, msgspec.Meta(ge=0.1, le=4)] | None = None
    crop_mode: str | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[_Deviation, _Deviation, _Deviation] | None = None


class TimmFolder(msgspec.Struct):
    """Content of `config.json`, which is next to the weights of a timm network on the Hub."""

    architecture: str
    pretrained_cfg: _DataConfig
    label_names: tuple[str, ...] | None = None
    model_args: dict[str, Any] = {}

    @classmethod
    def read(cls, folder: Path, name: str) -> TimmFolder:
        """Read the description of the network `name`.

        Raises:
            BackboneError: If `folder` contains no description, or describes another network.
        """
        path = folder / "config.json"
        try:
            found = msgspec.json.decode(read_text(path), type=cls)
        except (TextFileError, msgspec.DecodeError) as error:
            raise BackboneError(
                f"{folder} is not a folder of a timm network: {path.name}: {error}",
                remedy="Give a folder with timm's `config.json` and `model.safetensors`, or only"
                " the file of the weights: `--weights FILE`.",
            ) from error
        if found.architecture != name.partition(".")[0]:
            raise BackboneError(
                f"{folder} contains the network {cut_short(found.architecture)}, not {name}",
                remedy="Give its name with `--backbone`.",
            )
        found.model_args.pop("num_classes", None)
        return found


def pretrained_network(name: str, model_args: Mapping[str, Any]) -> nn.Module:
    """Return the network with timm's pretrained weights, from the Hub or its cache of downloads.

    Raises:
        BackboneError: If timm has no such weights, or they cannot be downloaded.
        MachineError: If there is too little memory.
    """
    with hub_or_cache() as why:
        try:
            network: nn.Module = timm.create_model(name, pretrained=True, **model_args)
        except Exception as error:  # timm and the client of the Hub raise a dozen types
            if why is None or out_of_memory(error):
                raise failure(
                    error,
                    f"timm cannot load pretrained weights of {name}",
                    "Give a checkpoint with `--weights FILE`, or check the network connection.",
                ) from error
            config = timm.get_pretrained_cfg(name, allow_unregistered=True)
            source = getattr(config, "hf_hub_id", None) or "REPOSITORY"
            raise BackboneError(
                f"no weights of {name}: {why}, and its cache {constants.HF_HUB_CACHE} does not"
                " contain them",
                remedy=f"On a machine with a network, `hf download {source} model.safetensors"
                " --local-dir .` gets the file; give it with `--weights model.safetensors`.",
            ) from error
    return network


def network_of_file(name: str, path: Path, model_args: Mapping[str, Any]) -> nn.Module:
    """Return the network with the weights of a file.

    Raises:
        BackboneError: If the file contains no weights, or weights of another network.
        MachineError: If there is too little memory.
    """
    state = _read_state(path)
    arguments = dict(model_args)
    prefix = getattr(timm.get_pretrained_cfg(name, allow_unregistered=True), "classifier", None)
    classifier = state.get(f"{prefix}.weight") if isinstance(prefix, str) else None
    if isinstance(classifier, Tensor):
        arguments.setdefault("num_classes", int(classifier.shape[0]))
    try:
        network: nn.Module = timm.create_model(name, pretrained=False, **arguments)
    except Exception as error:
        what = f"timm cannot build {name} with {arguments}"
        raise failure(error, what, "Check `--backbone` and `--model-arg`.") from error
    try:
        by_order = path.suffix != ".safetensors" and _differs_by_names(state, network)
        timm.models.load_checkpoint(network, str(path), remap=by_order, weights_only=True)
    except Exception as error:  # timm's checkpoint filters can raise anything
        what = f"{path} does not fit {name}; it has {len(state):,} tensors such as {_some(state)}"
        remedy = (
            "Give the `--backbone` and `--model-arg` of the saved model: for a model without a"
            " classifier `--model-arg num_classes=0`, for a model of torchvision its number of"
            " classes."
        )
        raise failure(error, what, remedy) from error
    return network


def _differs_by_names(state: Mapping[str, Any], network: nn.Module) -> bool:
    """Return whether a state has the network's tensors in order, but none of their names."""
    own = network.state_dict()
    sizes = [each.numel() if isinstance(each, Tensor) else None for each in state.values()]
    return state.keys().isdisjoint(own) and sizes == [each.numel() for each in own.values()]


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
            "Give a safetensors file, or a .pth file that contains only tensors, as clinit never"
            " runs code in a checkpoint; a web page or a Git LFS pointer is not a checkpoint.",
        ) from error
    if not any(isinstance(value, Tensor) for value in state.values()):
        raise BackboneError(
            f"{path} contains no tensor, but {_some(state) or 'nothing'}",
            remedy="Save only the weights: a mapping of names to tensors, possibly under the key"
            " state_dict or model.",
        )
    return state


def _some(names: Mapping[str, Any]) -> str:
    return ", ".join(map(str, islice(names, 2)))


def failure(error: Exception, what: str, remedy: str) -> ClinitError:
    """Return the error to raise for an error of timm: a `MachineError` if memory is short."""
    if out_of_memory(error):
        return MachineError(
            f"not enough memory: {what}",
            remedy="Free memory, or choose a smaller backbone; then run the same command again.",
        )
    why = " ".join(str(error).split())[:300] or type(error).__name__
    return BackboneError(f"{what}: {why}", remedy=remedy)


@contextmanager
def hub_or_cache() -> Iterator[str | None]:
    """Let downloads search only the cache if the Hub is out of reach; yield the reason, or None.

    The test request uses the library's proxies, certificates and time limit (HF_HUB_ETAG_TIMEOUT,
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
        except Exception as error:  # the HTTP client depends on the version of the library
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
