"""What a file of weights holds, in words: for whoever has given the wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor

_SHOWN = 2
"""Names that stand for all."""
_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "layer1.0.conv1.weight": ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    "stages.0.blocks.0.conv_dw.weight": (
        *(f"convnextv2_{size}" for size in ("atto", "femto", "pico", "nano", "tiny", "base")),
        *(f"convnext_{size}" for size in ("tiny", "small", "base")),
    ),
    "blocks.0.attn.qkv.weight": (
        *(f"vit_{size}_patch16_224" for size in ("tiny", "small", "base", "large")),
        *(f"vit_{size}_patch14_dinov2" for size in ("small", "base", "large")),
    ),
    "conv_stem.weight": ("mobilenetv2_100", "mobilenetv3_large_100", "efficientnet_b0"),
    "layers.0.blocks.0.attn.qkv.weight": ("swin_tiny_patch4_window7_224",),
}
"""Networks that are often used, by the name of a tensor that their family has."""
_MARKS = {
    "lora_": "low-rank updates of a network, without the network",
    "visual.": "a model of images and text (CLIP)",
    "embeddings.patch_embeddings": "a model of the library transformers, not of timm",
    "encoder.layers.encoder_layer_0": "a model of torchvision, not of timm",
}
"""Parts of names that tell what else it is."""
_BEGINNINGS = {
    b"version https://git-lfs": "a pointer of Git LFS, not the weights that it stands for",
    b"<": "a web page",
    b"\x89HDF": "an HDF5 file",
    b"PAR1": "a Parquet file",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"\x1f\x8b": "compressed with gzip",
    b"{": "a JSON file",
    b"ONNX": "an ONNX model",
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
    for mark, kind in _MARKS.items():
        if any(mark in name for name in tensors):
            return f"{told} ({kind})"
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


def known_network(state: Mapping[str, Any]) -> str | None:
    """Return timm's name of the network that weights are of, if it is one that is often used.

    Their classifier may have any number of rows.
    """
    shapes = _body({name: v for name, v in state.items() if isinstance(v, Tensor)})
    for mark, names in _FAMILIES.items():
        if mark in shapes:
            for name in names:
                with torch.device("meta"):
                    network: Any = timm.create_model(name)
                classifier = str(network.pretrained_cfg.get("classifier"))
                own = _body(network.state_dict(), classifier)
                if own == {k: v for k, v in shapes.items() if not k.startswith(f"{classifier}.")}:
                    return name
    return None


def _body(state: Mapping[str, Tensor], classifier: str | None = None) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tensors, without those of the classifier and without counters."""
    return {
        name: tuple(value.shape)
        for name, value in state.items()
        if not name.endswith("num_batches_tracked") and not name.startswith(f"{classifier}.")
    }


def _named(names: list[str]) -> str:
    return " and ".join(names[:_SHOWN])


def _some(names: Mapping[str, Any] | list[str]) -> str:
    listed = [*names]
    return ", ".join(listed[:_SHOWN]) + (", …" if len(listed) > _SHOWN else "")
