"""A network of timm with its weights: timm's own, from a file, or from a folder of the Hub.

The tensors of a .pth file may have other names, as in checkpoints of torchvision: if no name is one
of timm's and all tensors have the sizes of timm's, in their order, they are taken by their order.

The library of the Hub tries each file six times, with pauses, before it looks into its cache; so
the Hub is asked once before, and if it does not answer only the cache is searched.
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
"""Seconds before each request; a Hub that refuses all of them counts as out of reach."""

_Side = Annotated[int, msgspec.Meta(ge=1, le=4096)]
_Deviation = Annotated[float, msgspec.Meta(gt=0)]


class _DataConfig(msgspec.Struct, omit_defaults=True):
    """timm's words for the transform of the images."""

    input_size: tuple[Literal[3], _Side, _Side] | None = None
    interpolation: Literal["nearest", "bilinear", "bicubic"] | None = None
    crop_pct: Annotated[float, msgspec.Meta(ge=0.1, le=4)] | None = None
    crop_mode: str | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[_Deviation, _Deviation, _Deviation] | None = None


class TimmFolder(msgspec.Struct):
    """The `config.json` of a network of timm on the Hugging Face Hub, next to its weights."""

    architecture: str
    pretrained_cfg: _DataConfig
    label_names: tuple[str, ...] | None = None
    model_args: dict[str, Any] = {}

    @classmethod
    def read(cls, folder: Path, name: str) -> TimmFolder:
        """Read the description of the network `name`.

        Raises:
            BackboneError: If there is none, or it is of another network.
        """
        path = folder / "config.json"
        try:
            found = msgspec.json.decode(read_text(path), type=cls)
        except (TextFileError, msgspec.DecodeError) as error:
            raise BackboneError(
                f"{folder} is no folder of a timm network: {path.name}: {error}",
                remedy="Give one with the `config.json` and `model.safetensors` of timm, or the"
                " weights alone: `--weights FILE`.",
            ) from error
        if found.architecture != name.partition(".")[0]:
            raise BackboneError(
                f"{folder} contains the network {cut_short(found.architecture)}, not {name}",
                remedy="Give its name with `--backbone`.",
            )
        found.model_args.pop("num_classes", None)
        return found


def pretrained_network(name: str, model_args: Mapping[str, Any]) -> nn.Module:
    """Return the network with timm's own weights, from the cache of downloads or from the Hub.

    Raises:
        BackboneError: If they cannot be had.
        MachineError: If the memory does not suffice.
    """
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
    try:
        network: nn.Module = timm.create_model(name, pretrained=False, **arguments)
    except Exception as error:
        what = f"timm cannot build {name} with {arguments}"
        raise failure(error, what, "Check `--backbone` and `--model-arg`.") from error
    try:
        by_order = path.suffix != ".safetensors" and _differs_by_names(state, network)
        timm.models.load_checkpoint(network, str(path), remap=by_order, weights_only=True)
    except Exception as error:  # checkpoint filters raise what they meet
        what = f"{path} does not fit {name}: it holds {len(state):,} tensors such as {_some(state)}"
        remedy = (
            "Check `--backbone` and `--model-arg` against the model that was saved: one without a"
            " classifier is built with `--model-arg num_classes=0`, one of torchvision with its"
            " number of classes."
        )
        raise failure(error, what, remedy) from error
    return network


def _differs_by_names(state: Mapping[str, Any], network: nn.Module) -> bool:
    """Return whether a state holds the tensors of a network in order, all by other names."""
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


def failure(error: Exception, what: str, remedy: str) -> ClinitError:
    """Return what to raise for an error of timm: a `MachineError` if memory is short."""
    if out_of_memory(error):
        return MachineError(
            f"not enough memory: {what}",
            remedy="Free memory, or choose a smaller backbone; then run the same command again.",
        )
    why = " ".join(str(error).split())[:300] or type(error).__name__
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
