"""Frozen pretrained timm networks as feature extractors.

The pooled feature of an image x is `forward_head(forward_features(x), pre_logits=True)`. If the
network has a linear classifier, this is the classifier's input: before an extraction,
`check_features` checks on a batch that classifier(feature) is the output of the network.
Self-supervised networks (DINO, MAE) and SigLIP towers have no classifier. A CLIP tower ends in a
linear projection instead; the projected feature is the output of the whole tower.

Keyword arguments of `timm.create_model` may come from untrusted files. The arguments of timm's own
functions do not describe an architecture: they name files to unpickle (`checkpoint_path`),
downloads (`pretrained_cfg`), other models, or switches. So they are refused; the constructor of the
model gets all other arguments. Their values are bounded, because a small file could request a huge
network, and no text value can be a path with a suffix, or an address.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import timm
import timm.data
import torch
from jaxtyping import Float
from torch import Tensor, nn

from clinit.errors import BackboneError
from clinit.extract.cache.head import Head
from clinit.extract.network.checkpoint import CHANNELS_REMEDY, WeightFile, failure, read_checkpoint
from clinit.extract.network.compiled import Forward
from clinit.extract.network.weights import TimmFolder, network_of_file, pretrained_network
from clinit.files.paths import is_folder
from clinit.machine import choose_device
from clinit.words import cut_short

MAX_TEXT = 4096
"""Maximum number of characters of arguments that are written as text."""
MAX_INTEGER = 2**16
MAX_CLASSES = 2**22
"""Largest `num_classes`. All other integers are widths, depths or sizes in pixels."""
MAX_FLOAT = 1e6
MAX_LENGTH, MAX_NESTING = 128, 3
"""Maximum number of entries of a list, and of levels of nested lists."""
_WORD = re.compile(r"[A-Za-z0-9_+-]{0,40}")
"""Allowed strings: names of a layer, a mode or a kind of pooling, but no path and no address."""


def check_model_args(arguments: Mapping[str, Any]) -> None:
    """Check that keyword arguments of `timm.create_model` only describe an architecture.

    Raises:
        ValueError: If an argument belongs to timm's own functions, or its value is of another
            type than expected or exceeds the bounds.
    """
    for name, value in arguments.items():
        if name in _of_timm():
            raise ValueError(
                f"the model argument {cut_short(name)} does not describe an architecture, as"
                " img_size, pad_type or depths do: files, downloads and switches of timm are not"
                " allowed"
            )
        problem = _problem(value, MAX_CLASSES if name == "num_classes" else MAX_INTEGER)
        if problem is not None:
            raise ValueError(f"the model argument {name} = {cut_short(value)} {problem}")


@cache
def _of_timm() -> frozenset[str]:
    of = (timm.create_model, timm.models.build_model_with_cfg)
    named = {name for each in of for name in signature(each).parameters}
    # These functions read them from **kwargs, so no signature contains them.
    more = {"device", "dtype", "feature_cls", "features_only", "out_indices", "pruned"}
    return frozenset(named | more)


def _problem(value: object, largest: int, nesting: int = 0) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        return None if abs(value) <= largest else f"lies beyond {largest:,}"
    if isinstance(value, float):
        return None if abs(value) <= MAX_FLOAT else f"lies beyond {MAX_FLOAT:,.0f}"
    if isinstance(value, str):
        return None if _WORD.fullmatch(value) else "is not a word of letters, digits, _, + and -"
    if isinstance(value, dict) and all(type(key) is int for key in value):
        value = [*value, *value.values()]  # CoaT: size of a window -> number of its heads
    if not isinstance(value, tuple | list):
        return f"is of type {type(value).__name__}, expected numbers, words or lists of them"
    if len(value) > MAX_LENGTH or nesting == MAX_NESTING:
        return f"has more than {MAX_LENGTH} entries or more than {MAX_NESTING} levels"
    problems = (_problem(each, largest, nesting + 1) for each in value)
    return next((problem for problem in problems if problem is not None), None)


def read_model_args(text: object) -> dict[str, Any]:
    """Read the arguments in a file, a Python literal of a dict or of pairs, and check them.

    Raises:
        ValueError: If the text is not such a literal, or `check_model_args` refuses an argument.
    """
    if not isinstance(text, str):
        raise ValueError(f"model_args is of type {type(text).__name__}, expected a text")
    found = read_literal(text)
    try:
        arguments = dict(found)
    except (TypeError, ValueError):
        arguments = {None: None}
    if not all(isinstance(name, str) for name in arguments):
        raise ValueError(f"model_args is {cut_short(text)}, expected names with values")
    check_model_args(arguments)
    return arguments


def parse_model_args(arguments: Sequence[str]) -> dict[str, Any]:
    """Turn `["pad_type=same", "depths=[1, 1, 2, 1]"]` into keyword arguments.

    A value that is not a Python literal is a string.

    Raises:
        BackboneError: If an argument is not `name=value`, or `check_model_args` refuses it.
    """
    parsed: dict[str, Any] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or not name.isidentifier():
            raise BackboneError(
                f"model argument {cut_short(argument)} is not of the form name=value",
                remedy="Write for example `--model-arg pad_type=same`.",
            )
        try:
            parsed[name] = read_literal(text)
        except ValueError:
            parsed[name] = text
    try:
        check_model_args(parsed)
    except ValueError as error:
        raise BackboneError(str(error), remedy="Correct or leave out `--model-arg`.") from error
    return parsed


def read_literal(text: str) -> Any:
    """Return the value of a Python literal.

    Raises:
        ValueError: If the text is not a literal, or too long or too deep to be read safely.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"a text of {len(text):,} characters, expected {MAX_TEXT:,} at most")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"{cut_short(text)} is not a Python literal") from error


_Names = tuple[str, ...] | None
_WITHOUT_CLASSIFIER = (
    "Extract its features without a head, `--model-arg num_classes=0`, or choose a network with one"
    " linear classifier, such as convnextv2_femto, vit_tiny_patch16_224 or resnet18."
)
AUTOCAST_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
PRECISIONS = {"float32": "off", "tf32": "tf32", "bf16": "bfloat16", "f16": "float16"}
"""The field `autocast` of fingerprints, by the values of `--precision`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneConfig:
    """Which network to load, and how it computes."""

    name: str
    """timm's name, with or without a tag: `convnextv2_femto.fcmae_ft_in1k`."""
    weights: Path | None = None
    """A safetensors or PyTorch checkpoint, or a folder with one and timm's `config.json`; None
    downloads timm's pretrained weights."""
    model_args: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `timm.create_model`, see `check_model_args`."""
    device: str = "cpu"
    """`cpu`, `cuda` or `cuda:<index>`."""
    autocast: str = "off"
    """The arithmetic of the forward pass, see `PRECISIONS`; `tf32` is for CUDA."""
    output: str = "pooled"
    """`pooled`, or `projected`: the features of a CLIP tower before or after its projection."""

    def __post_init__(self) -> None:
        if self.output not in ("pooled", "projected"):
            raise ValueError(f"output must be pooled or projected, got {self.output!r}")
        if self.autocast not in PRECISIONS.values():
            raise ValueError(f"autocast must be in {[*PRECISIONS.values()]}, got {self.autocast!r}")

    def arithmetic(self) -> AbstractContextManager[Any]:
        """Return the context manager for forward passes, which sets `autocast`."""
        if self.autocast not in AUTOCAST_DTYPES:
            return nullcontext()
        device_type = torch.device(self.device).type
        return torch.autocast(device_type, dtype=AUTOCAST_DTYPES[self.autocast])

    @contextmanager
    def float32(self) -> Iterator[None]:
        """Let CUDA convolve and multiply float32 alike, exactly or in TF32, within the block.

        By PyTorch's default, convolutions use TF32 and products do not. The switches are global;
        their previous values are restored after the block. The newer switches `fp32_precision`
        are not used, because `torch.export` and older compilers refuse to read them.
        """
        switches: Any = (torch.backends.cudnn, torch.backends.cuda.matmul)
        before = [each.allow_tf32 for each in switches]
        try:
            for each in switches:
                each.allow_tf32 = self.autocast == "tf32"
            yield
        finally:
            for each, is_allowed in zip(switches, before, strict=True):
                each.allow_tf32 = is_allowed


@dataclass(frozen=True, slots=True, eq=False)
class Backbone:
    """A network in evaluation mode, and a copy of its classifier or projection."""

    config: BackboneConfig
    network: nn.Module
    head: Head | None
    """The pretrained classifier, with the class names stored with the weights, if any. None if the
    network ends in its features or in a projection."""
    projection: Head | None
    """The map from pooled to projected features of a CLIP tower; None for other networks."""
    data_config: Mapping[str, Any]
    """timm's preprocessing of this model."""
    weights_sha256: str
    """SHA-256 of the state dict (`state_sha256`), which does not depend on the file format."""
    note: str = ""
    """How the weights were found in their file, if the user should know."""
    program: Forward | None = None
    """`forward`, compiled for batches of one size; None computes layer by layer."""

    @property
    def dim(self) -> int:
        """Width of a feature."""
        if self.projection is not None and self.config.output == "projected":
            return self.projection.num_classes
        last = self.head or self.projection
        return int(self.network.head_hidden_size) if last is None else last.dim  # type: ignore[arg-type]

    def features(self, batch: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch dim"]:
        """Return the features of normalised images, in float32."""
        with self.config.float32():
            if self.program is not None:
                return self.program(batch)
            with torch.inference_mode():
                return self.forward(batch)

    def forward(self, batch: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch dim"]:
        """Compute `features` layer by layer; `program` is compiled from this function."""
        with self.config.arithmetic():
            maps = self.network.forward_features(batch)  # type: ignore[operator]
            features: Tensor = self.network.forward_head(  # type: ignore[operator]
                maps, pre_logits=self.config.output == "pooled"
            )
        return features.float()

    @torch.inference_mode()
    def logits(self, batch: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch rows"]:
        """Return the network's own output for normalised images, in float32."""
        with self.config.float32(), self.config.arithmetic():
            logits: Tensor = self.network(batch)
        return logits.float()


def load_backbone(
    config: BackboneConfig, checkpoint: WeightFile | None = None, *, named: bool = False
) -> Backbone:
    """Build the network, load its weights and copy its classifier or projection.

    Args:
        config: Which network.
        checkpoint: The weights, if they are read already.
        named: Whether the user names the rows of the last layer, which must then be a classifier.

    Raises:
        BackboneError: If timm has no model of this name, an argument does not describe an
            architecture, the weights are missing, do not fit or are not finite, the classifier is
            not one linear layer, or the user requests a projection or a classifier that the
            network does not have.
        MachineError: If there is too little memory.
        DeviceError: If the device is absent.
    """
    choose_device(config.device)
    name, folder = _timm_name(config.name), None
    note = f"timm's name of {config.name} is {name}" if name != config.name else ""
    config = replace(config, name=name)
    if config.weights is not None and is_folder(config.weights):
        folder = TimmFolder.read(config.weights, config.name)
        file, arguments = folder.weights(config.weights), folder.model_args
        config = replace(config, weights=file, model_args={**arguments, **config.model_args})
    try:
        check_model_args(config.model_args)
    except ValueError as error:
        raise BackboneError(
            f"{config.name}: {error}", remedy="Correct or leave out these arguments."
        ) from error
    if config.weights is None:
        network = pretrained_network(config.name, config.model_args)
    else:
        checkpoint = checkpoint or read_checkpoint(config.weights)
        network, renamed = network_of_file(config.name, checkpoint, config.model_args)
        note = "; ".join(filter(None, (note, renamed)))
    network.eval().requires_grad_(False)
    first = next((each for each in network.modules() if isinstance(each, nn.Conv2d)), None)
    if first is not None and (first.in_channels == 1 or config.model_args.get("in_chans", 3) != 3):
        raise BackboneError(
            f"the input channels of {config.name} are {first.in_channels}, but clinit reads 3",
            remedy="Leave out `in_chans`: timm converts its pretrained weights."
            if checkpoint is None
            else CHANNELS_REMEDY,
        )
    names = None if folder is None else folder.label_names
    last = _last_layer(config, network, _stored_names(checkpoint, names))
    is_projection = (
        last is not None
        and not named
        and last.class_names is None
        and last.num_classes in projection_widths(config.name)
    )
    if (config.output == "projected" and not is_projection) or (named and last is None):
        raise BackboneError(
            f"{config.name} ends in {'a classifier' if last else 'its pooled features'}"
            + (f"; {note}" if note else ""),
            remedy=f"Leave out `{'--head-classes' if named else '--features projected'}`.",
        )
    sha256 = state_sha256(network.state_dict())
    # Channels last makes convolutions 1.3 to 1.6 times as fast, on a CPU too, and slows nothing.
    network.to(device=config.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    data_config = timm.data.resolve_model_data_config(network)
    data_config |= {} if folder is None else msgspec.to_builtins(folder.pretrained_cfg)
    head, projection = (None, last) if is_projection else (last, None)
    return Backbone(config, network, head, projection, data_config, sha256, note=note)


def projection_widths(name: str) -> frozenset[int]:
    """Return the widths of projections that timm stores as classifiers of a CLIP tower.

    Only their number of classes distinguishes them from classifiers. Widths of projections are
    multiples of 64 (384 to 1,280). The numbers of rows of pretrained classifiers (1,000, 11,821,
    21,841) never are, not even for towers fine-tuned on ImageNet.

    Args:
        name: timm's name; without a tag, the widths of all tags are returned.
    """
    names = [name] if "." in name else timm.list_pretrained(f"{name}.*")
    known = {timm.get_pretrained_cfg(each).num_classes for each in names}  # type: ignore[union-attr]
    return frozenset(rows for rows in known if rows and rows % 64 == 0)


def _last_layer(config: BackboneConfig, network: nn.Module, names: _Names) -> Head | None:
    """Return the last linear layer of a network; None if the network ends in its features.

    The rows have the names that are stored with the weights, or else `names`.
    """
    if not hasattr(network, "get_classifier"):
        raise BackboneError(
            f"{config.name} only encodes patches: it does not pool them into one feature vector",
            remedy="Choose another backbone.",
        )
    classifier = network.get_classifier()  # type: ignore[operator]
    if isinstance(classifier, nn.Identity) or getattr(network, "num_classes", 1) == 0:
        return None
    if not isinstance(classifier, nn.Linear):
        raise BackboneError(
            f"the classifier of {config.name} is {type(classifier).__name__}, not one linear layer",
            remedy=_WITHOUT_CLASSIFIER,
        )
    weight = classifier.weight.detach().float().numpy().copy()
    bias = np.zeros(len(weight), np.float32)
    if classifier.bias is not None:
        bias = classifier.bias.detach().float().numpy().copy()
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise BackboneError(
            f"{config.weights or 'timm'}: the classifier of {config.name} contains values that are"
            " not finite; its training has probably diverged",
            remedy="Give an undamaged checkpoint with `--weights FILE`.",
        )
    if names is not None and len(names) != len(weight):
        raise BackboneError(
            f"{config.weights} names {len(names)} classes, its classifier has {len(weight)} rows",
            remedy="Give the right names with `--head-classes FILE`, one per line.",
        )
    return Head(weight, bias, names)


def _timm_name(name: str) -> str:
    """Return the present name of a model of timm, with or without a tag; refuse other names."""
    name = timm.models.get_deprecated_models().get(name) or name
    architecture, _, tag = name.partition(".")
    if architecture not in timm.list_models():
        near = difflib.get_close_matches(architecture, timm.list_models(), n=5)
        bare = re.sub(r"^(hf[-_]hub:)?timm/", "", name)
        raise BackboneError(
            f"timm {timm.__version__} has no model {name!r}",
            remedy=f"Leave out the repository: `--backbone {bare}`."
            if bare != name
            else f"Similar models: {', '.join(near)}."
            if near
            else "See `timm.list_models()`; give a folder or a file of weights with `--weights`.",
        )
    try:
        timm.get_pretrained_cfg(name, allow_unregistered=True)
    except RuntimeError as error:
        tags = timm.list_models(f"{architecture}.*", pretrained=True)
        raise BackboneError(
            f"timm {timm.__version__} has no weights {tag!r} of {architecture}",
            remedy=f"Available: {', '.join(tags) or 'none'}. Or give a checkpoint with"
            f" `--weights FILE`, and the name {architecture}.",
        ) from error
    return name


def check_features(backbone: Backbone, batch: Float[Tensor, "batch 3 height width"]) -> None:
    """Check on one batch that a network computes one finite feature vector per image.

    Also check that the classifier or projection, applied to pooled features, gives the output of
    the network.

    Raises:
        BackboneError: If a check fails.
    """
    try:
        features, expected = backbone.features(batch), backbone.logits(batch)
    except Exception as error:  # a wrong size or argument can raise anything
        what = f"{backbone.config.name} cannot process images of"
        what += f" {' x '.join(map(str, batch.shape[2:]))} pixels"
        raise failure(error, what, _right_size(backbone, tuple(batch.shape[2:]))) from error
    if features.shape[1:] != (backbone.dim,) or not torch.isfinite(features).all():
        raise BackboneError(
            f"{backbone.config.name} gives features of shape {tuple(features.shape)},"
            f" expected {backbone.dim} finite numbers per image",
            remedy="Check the weights and `--precision`, let timm pool (`--model-arg"
            " global_pool=avg`), or choose another backbone.",
        )
    last = backbone.head or backbone.projection
    if last is None or backbone.config.output == "projected":
        return
    weight = torch.from_numpy(last.weight).to(features.device)
    found = features @ weight.T + torch.from_numpy(last.bias).to(features.device)
    scale = float(expected.abs().max().clamp(min=1))
    # Autocast rounds the model's own logits, but not this product.
    tolerance = 1e-3 if backbone.config.autocast == "off" else 3e-2
    is_same = found.shape == expected.shape
    if not (is_same and float((found - expected).abs().max()) <= tolerance * scale):  # nor NaN
        raise BackboneError(
            f"the classifier of {backbone.config.name}, applied to its features, does not give the"
            " model's own logits, so the model computes more than this classifier",
            remedy=_WITHOUT_CLASSIFIER,
        )


def _right_size(backbone: Backbone, given: tuple[int, ...]) -> str:
    """Return the remedy for images of a wrong size, from the size that the network is built for."""
    built = getattr(getattr(backbone.network, "patch_embed", None), "img_size", None)
    usual = tuple(backbone.data_config["input_size"][1:])
    if built is not None and tuple(built) != given:
        side = built[0]
        told = f"Its weights are for {side} pixels: " + (
            "leave out `--input-size`" if tuple(built) == usual else f"give `--input-size {side}`"
        )
        return f"{told}. Or let it interpolate: `--model-arg dynamic_img_size=True`."
    if usual != given:
        return f"Leave out `--input-size`: its weights are for {usual[0]} pixels."
    return "Check `--model-arg` and `--precision`."


def _stored_names(checkpoint: WeightFile | None, names: _Names) -> _Names:
    """Return the class names in the file of the weights, or else `names`."""
    # Files of other programs may contain no class names, or other metadata of the same key.
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        metadata = {} if checkpoint is None else checkpoint.metadata
        found = json.loads(metadata.get("class_names", "null"))
        if "clinit_model" in metadata:  # the file is an exported model of clinit
            found = json.loads(metadata["clinit_model"])["class_names"]
        if found is not None:
            names = tuple(map(str, msgspec.convert(found, list[str | int])))
    return names


def state_sha256(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over the names, types, shapes and bytes of a state dict."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().contiguous().view(-1)
        if values.stride(0) != 1:  # PyTorch calls a single expanded number contiguous
            values = values.clone(memory_format=torch.contiguous_format)
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def body_sha256(network: nn.Module) -> str:
    """Return the SHA-256 of the weights that pooled features depend on: all but the classifier."""
    layers = network.get_classifier()  # type: ignore[operator]
    layers = nn.ModuleList(layers if isinstance(layers, tuple) else [layers])
    classifier = {id(each) for each in layers.parameters()}
    state = network.state_dict(keep_vars=True)
    return state_sha256({name: v for name, v in state.items() if id(v) not in classifier})
