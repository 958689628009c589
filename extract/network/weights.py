"""Build a timm network with pretrained weights, weights of a file, or a folder of the Hub.

The tensors of a file may have other names than timm's. If no name is equal, a common prefix of
timm's names is left out; or, as for checkpoints of torchvision, the tensors of a .pth file are
loaded by order if they have the sizes of timm's.

The library of the Hugging Face Hub tries each file six times, with pauses, before it searches its
cache. So clinit first tries to reach the Hub; if that fails, the library searches only its cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import timm
from torch import Tensor, nn

from clinit.errors import BackboneError
from clinit.extract.network.checkpoint import CHANNELS_REMEDY, WeightFile, failure
from clinit.extract.network.hub import hub_or_cache, not_there
from clinit.files.paths import is_file
from clinit.files.text import TextFileError, read_text
from clinit.machine import out_of_memory
from clinit.words import cut_short, examples, listed, number_of

_Side = Annotated[int, msgspec.Meta(ge=1, le=4096)]
_Deviation = Annotated[float, msgspec.Meta(gt=0)]
_OF_CHANNELS = msgspec.Meta(min_length=1, max_length=3)
_FILES = ("model.safetensors", "pytorch_model.bin", "pytorch_model.pth", "model.pth")


class _DataConfig(msgspec.Struct, omit_defaults=True):
    """The transform of the images, in timm's terms."""

    input_size: tuple[Literal[1, 3], _Side, _Side] | None = None
    interpolation: Literal["nearest", "bilinear", "bicubic"] | None = None
    crop_pct: Annotated[float, msgspec.Meta(ge=0.1, le=4)] | None = None
    crop_mode: str | None = None
    mean: Annotated[tuple[float, ...], _OF_CHANNELS] | None = None
    std: Annotated[tuple[_Deviation, ...], _OF_CHANNELS] | None = None


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
            content = msgspec.json.decode(read_text(path), type=dict[str, Any])
            found = msgspec.convert(_as_today(content), cls)
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

    @staticmethod
    def weights(folder: Path) -> Path:
        """Return the file of the weights in a folder of a timm network, by timm's names.

        Raises:
            BackboneError: If there is none.
        """
        known = [folder / name for name in _FILES]
        endings = ("*.safetensors", "*.pth", "*.bin")
        others = [path for each in endings for path in sorted(folder.glob(each))]
        for path in (*known, *others):
            if is_file(path):
                return path
        raise BackboneError(
            f"no weights in {folder}: it has no {listed(_FILES[:2], 'or')}",
            remedy="Give their file: `--weights FILE`.",
        )


def _as_today(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `config.json` as timm writes them today.

    Earlier versions wrote one flat dictionary. The names of classes may be at three places, and
    numbered.
    """
    config = content.get("pretrained_cfg", content)
    places = ((content, "label_names"), (config, "label_names"), (config, "labels"))
    names = next((p[name] for p, name in places if isinstance(p, dict) and p.get(name)), None)
    if isinstance(names, dict) and set(names) == set(map(str, range(len(names)))):
        names = [names[str(number)] for number in range(len(names))]
    return {**content, "pretrained_cfg": config, "label_names": names}


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
            raise not_there(name, why) from error
    return network


def network_of_file(
    name: str, checkpoint: WeightFile, model_args: Mapping[str, Any]
) -> tuple[nn.Module, str]:
    """Return the network with the weights of a file, and a note if tensors were renamed.

    Unless `model_args` gives it, the file determines the number of classes.

    Raises:
        BackboneError: If the file contains weights of another network.
        MachineError: If there is too little memory.
    """
    arguments = _of_classifier(name, checkpoint) | dict(model_args)
    try:
        network: nn.Module = timm.create_model(name, pretrained=False, **arguments)
    except Exception as error:
        what = f"timm cannot build {name} with {arguments}"
        raise failure(error, what, "Check `--backbone` and `--model-arg`.") from error
    state, note = _renamed(checkpoint, network.state_dict())
    try:
        network.load_state_dict(state)
    except Exception as error:
        what = f"{checkpoint.path} does not fit {name}; it has {checkpoint.some}"
        raise failure(error, what, _remedy(state, network)) from error
    return network, note


def _of_classifier(name: str, checkpoint: WeightFile) -> dict[str, Any]:
    """Return the argument for the number of classes of a file; none if it cannot be known."""
    config, tensors = timm.get_pretrained_cfg(name, allow_unregistered=True), checkpoint.tensors
    layer = getattr(config, "classifier", None)
    if not isinstance(layer, str):
        return {}
    found = [key for key in tensors if f".{key}".endswith(f".{layer}.weight")]
    weight = min(found, key=lambda key: key.count("."), default=None)
    if weight is not None and tensors[weight].ndim:
        return {"num_classes": int(tensors[weight].shape[0])}
    first = getattr(config, "first_conv", None)
    own_names = any(f".{key}".endswith(f".{first}.weight") for key in tensors)
    last = list(tensors.values())[-1]
    if own_names:
        return {"num_classes": 0}
    return {"num_classes": len(last)} if checkpoint.is_pickle and last.ndim == 1 else {}


def _renamed(checkpoint: WeightFile, own: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], str]:
    """Return the tensors of a file under the network's names, and a note if they had others."""
    state, own_first = checkpoint.tensors, f".{next(iter(own), '')}"
    if not state.keys().isdisjoint(own):
        return state, ""
    ends = [name.removesuffix(own_first) for name in state if name.endswith(own_first)]
    fitting = [end for end in ends if all(f"{end}.{name}" in state for name in own)]
    if len(fitting) == 1:
        taken = {name: state[f"{fitting[0]}.{name}"] for name in own}
        note = f"{checkpoint.path}: {fitting[0]}. before the names of its tensors is left out"
        if left := [name for name in state if name.removeprefix(f"{fitting[0]}.") not in own]:
            note += f", {number_of(len(left), 'other tensor')} ({examples(left)}) too"
        return taken, note
    sizes = [tensor.numel() for tensor in own.values()]
    if checkpoint.is_pickle and [each.numel() for each in state.values()] == sizes:
        ordered = zip(own.items(), state.values(), strict=True)
        taken = {name: found.reshape(like.shape) for (name, like), found in ordered}
        note = f"{checkpoint.path}: its tensors have other names and are taken by their order"
        return taken, note
    return state, ""


def _remedy(state: Mapping[str, Tensor], network: nn.Module) -> str:
    """Return what to do with weights that do not fit a network, by the tensors that differ."""
    own = network.state_dict()
    differ = [name for name, one in state.items() if one.shape != own.get(name, one).shape]
    for name in differ:
        found, wanted = state[name], own[name]
        if found.ndim == 4 == wanted.ndim and found.shape[1] != wanted.shape[1] == 3:
            channels = number_of(found.shape[1], "channel")
            return f"Its first layer takes images of {channels}. {CHANNELS_REMEDY}"
        is_place = differ == [name] and name.endswith("pos_embed")
        if is_place and (size := _image_size(found, wanted, network)):
            more = f"--model-arg img_size={size} --input-size {size}"
            return f"It is for images of {size} pixels: add `{more}`."
        if found.shape[1:] == wanted.shape[1:]:
            rows = f"{name} has {found.shape[0]:,} rows, the network {wanted.shape[0]:,}"
            return f"{rows}: leave out or correct `--model-arg num_classes`."
    absent = [name for name in own if name not in state]
    others = [name for name in state if name not in own]
    told = [f"the file lacks {examples(absent)}"] if absent else []
    told += [f"the network lacks {examples(others)}"] if others else []
    told = told or [f"other shapes has {examples(differ)}"]
    return f"Give the `--backbone` and `--model-arg` of the saved network: {'; '.join(told)}."


def _image_size(found: Tensor, wanted: Tensor, network: nn.Module) -> int:
    """Return the side in pixels of the images that a position embedding is for; 0 if unknown."""
    embed: Any = getattr(network, "patch_embed", None)
    if found.ndim != 3 or embed is None or not getattr(embed, "grid_size", None):
        return 0
    more = wanted.shape[1] - math.prod(embed.grid_size)  # tokens of the class and registers
    side = math.isqrt(max(0, found.shape[1] - more))
    return int(side * embed.patch_size[0]) if side * side == found.shape[1] - more else 0
