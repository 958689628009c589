"""The network of a model: load it, compute with it, change its classifier, write it for timm.

    model.safetensors    the state dict of the network, and its classes
    config.json          what `timm.create_model("local-dir:FOLDER", pretrained=True)` reads

timm loads `model.safetensors` without clinit. Before a network with another head is written, its
logits are compared with features times head. `config.json` has the form of timm's models on the
Hugging Face Hub (`timm.models.save_for_hf`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import numpy as np
import timm
import torch
from jaxtyping import Float, UInt8
from msgspec import Meta
from safetensors.torch import save as save_state
from torch import Tensor, nn

from clinit.errors import BackboneError, ModelError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head
from clinit.extract.dataset import decode
from clinit.extract.dataset.images import ImageFiles
from clinit.extract.dataset.names import title
from clinit.extract.network import backbone as backbones
from clinit.extract.network.checkpoint import read_checkpoint
from clinit.extract.network.compiled import on_its_way
from clinit.extract.network.transform import Transform
from clinit.extract.work.pipeline import Decoder, ImageBatch, Timing, features_of
from clinit.extract.work.recorded import ASSUMED, name_rows
from clinit.extract.work.run import ExtractConfig, Network, load_network
from clinit.files.paths import is_folder
from clinit.headtrain.heads.temperature import divided
from clinit.headtrain.model import engine as engines
from clinit.headtrain.model.facts import DOCUMENT, METADATA, ModelFacts
from clinit.headtrain.model.model import Model
from clinit.headtrain.model.reading import Reading
from clinit.machine import choose_device, out_of_memory
from clinit.words import contrast_digests

CONFIG_FILE = "config.json"
TOLERANCE = 1e-5
"""Largest difference between logits of the network and features times head, relative to the sum of
absolute terms; and between the logits of two networks, relative to the largest logit."""
_OF_THE_NETWORK = ("pool_size", "first_conv", "classifier", "fixed_input_size")
"""Parts of timm's registry that describe the network, whatever its weights."""


class OfNetwork(TypedDict):
    """Facts about the network in the description of a model, next to the keys of `ModelFacts`."""

    backbone: str
    model_args: str
    transform: Transform
    autocast: Annotated[str, Meta(pattern="^(off|tf32|bfloat16|float16)$")]
    weights: str
    """SHA-256 over the state dict (`state_sha256`)."""


@dataclass(frozen=True, eq=False)
class TimmEngine:
    """A network of timm on its device, and the transform of its images."""

    backbone: backbones.Backbone
    """With its original classifier."""
    transform: Transform
    head: Head | None = None
    """Head in place of the classifier, which gives the logits; None: the classifier does."""

    @property
    def device(self) -> str:
        """Device of the network."""
        return self.backbone.config.device

    @cached_property
    def depends_on(self) -> dict[str, str]:
        """The facts that the features depend on, as in a memory."""
        return {
            "body": backbones.body_sha256(self.backbone.network),
            "transform": self.transform.describe(),
            "autocast": self.backbone.config.autocast,
        }

    def answered(self, images: Sequence[Any], reading: Reading) -> Generator[engines.AnsweredBatch]:
        """Yield the logits of images, in batches.

        The code of the extraction of the training features decodes, resizes and normalises them.
        One image, and images in memory, are computed at once, without threads that read ahead.
        """
        device, transform = torch.device(self.device), self.transform

        def prepare(given: Any) -> Tensor:
            if isinstance(given, bytes):
                pixels = decode.decode(given, max_pixels=reading.max_pixels)
            else:
                pixels = torch.from_numpy(given).permute(2, 0, 1)
            transform.check_resized(pixels.shape[1:], reading.max_pixels)
            return transform.to_input(pixels)

        if len(images) == 1 or not all(isinstance(each, Path) for each in images):
            for row, image in enumerate(images):
                found, why = engines.read_image(image, prepare)
                nothing = torch.zeros((3, *transform.crop), dtype=torch.uint8)
                logits = self.logits((nothing if found is None else found)[None]).cpu().numpy()
                reading.on_images(row + 1)
                yield [row], logits, {} if why is None else {row: why}
            return
        there = [row for row, path in enumerate(images) if engines.is_there(path)]
        files = [images[row] for row in there]
        batches = load_files(files, transform, reading, pin_memory=device.type == "cuda")
        backbone = on_its_way(
            self.backbone,
            transform,
            cast(Any, reading.compile),
            batch_size=reading.batch_size,
            images=len(there),
            on_note=reading.on_note,
        )
        compute = replace(self, backbone=backbone).logits
        with closing(features_of(batches, compute, device, Timing())) as answers:
            for batch, found_logits in answers:
                reasons = {there[row]: reason for row, reason in batch.reasons.items()}
                yield [there[row] for row in batch.rows], found_logits.numpy(), reasons
                reading.on_images(there[batch.rows[-1]] + 1)
        reading.on_images(len(images))

    def logits(self, pixels: UInt8[Tensor, "images 3 _ _"]) -> Float[Tensor, "images classes"]:
        """Return the logits of images, in the arithmetic of the extraction.

        Raises:
            ModelError: If the network cannot process images of this size.
        """
        try:
            normalised = self.transform.normalise(pixels.to(self.device))
            if self.backbone.program is None and self.head is None:
                return self.backbone.logits(normalised)
            weight, bias = self._classifier
            return self.backbone.features(normalised) @ weight.T + bias
        except Exception as error:  # PyTorch has a dozen types
            if out_of_memory(error) or isinstance(error, torch.AcceleratorError):
                raise
            raise engines.refused_size(error, self.transform.crop) from error

    @cached_property
    def _classifier(self) -> list[Tensor]:
        """Weight and bias on the device; each copy would wait for it."""
        head = self.head or self.backbone.head
        assert head is not None
        return [torch.from_numpy(each).to(self.device) for each in (head.weight, head.bias)]

    def with_heads(self, heads: Sequence[Head]) -> TimmEngine:
        """Return the engine with the logits of these heads, one after the other."""
        weight, bias = (
            np.concatenate([getattr(each, name) for each in heads]) for name in ("weight", "bias")
        )
        return replace(self, head=Head(weight, bias))

    def network(self, dtype: str) -> Network:
        """Return the network for an extraction.

        Features do not depend on the classifier: models that differ only in their classes have
        features with the same fingerprint.

        Args:
            dtype: Dtype in which features are stored.
        """
        config = replace(self.backbone.config, model_args=model_args(self.backbone))
        body = replace(self.backbone, config=config, weights_sha256=self.depends_on["body"])
        return replace(Network.of(body, self.transform, dtype, "cpu"), backbone=self.backbone)

    def fingerprint(self, dtype: str) -> Fingerprint:
        """Return the fingerprint of the features of this network."""
        return self.network(dtype).fingerprint


def load_files(
    paths: Sequence[Path], transform: Transform, reading: Reading, *, pin_memory: bool = False
) -> Generator[ImageBatch]:
    """Yield the pixels of existing files, resized for the model."""
    images = ImageFiles(
        Path("/"),  # links may lead anywhere
        [str(path.absolute()) for path in paths],
        need_rights=False,  # an unreadable file must not stop the rest
    )
    decoder = Decoder(
        images=images,
        transform=transform,
        workers=reading.threads,
        max_pixels=reading.max_pixels,
        pin_memory=pin_memory,
    )
    starts, size = range(0, len(paths), reading.batch_size), reading.batch_size
    return decoder.batches(range(start, min(start + size, len(paths))) for start in starts)


def engine_of(model: Model) -> TimmEngine:
    """Return the network of a model that can be changed.

    Raises:
        ModelError: If the model is a head alone, or an ONNX file.
    """
    engine = model.need_engine()
    _ = model.head
    return cast(TimmEngine, engine)


def read_engine(
    path: Path, content: Mapping[str, Any], device: str, held: Mapping[str, Path] = {}
) -> TimmEngine:
    """Read the network at `path`, including its classifier, as described.

    Raises:
        ModelError: If the description is damaged or contains arguments that it must not, or if the
            network has changed since it was written.
        BackboneError: If this version of timm cannot build the network.
        DeviceError: If the device is absent.
    """
    file = path / engines.MODEL_FILE if is_folder(path) else path
    told = DOCUMENT.convert(content, OfNetwork, origin=f"the description in {file}")
    try:
        arguments = backbones.read_model_args(told["model_args"])
    except ValueError as error:
        raise ModelError(
            f"{file} contains a forbidden argument: {error}",
            remedy="Do not use this file. `clinit export` writes no such file.",
        ) from error
    config = backbones.BackboneConfig(
        name=told["backbone"],
        weights=file,
        model_args={**arguments, "num_classes": len(content["class_names"])},
        device=str(choose_device(device)),
        autocast=told["autocast"],
    )
    backbone = backbones.load_backbone(config, read_checkpoint(file, held.get(engines.MODEL_FILE)))
    if backbone.weights_sha256 != told["weights"]:
        found, exported = contrast_digests(backbone.weights_sha256, told["weights"])
        raise ModelError(
            f"the weights in {file} differ from the exported weights: SHA-256 {found} instead of"
            f" {exported}",
            remedy="Export the run again; this file is damaged.",
        )
    return TimmEngine(backbone, told["transform"])


def stock_model(config: ExtractConfig) -> Model:
    """Return a pretrained network of timm as a model that remembers nothing.

    Args:
        config: Backbone and transform; `head_classes` lists the classes, if their names are not
            stored with the weights and are not the classes of ImageNet-1K.

    Returns:
        The model; it has no class if the network has no classifier.

    Raises:
        BackboneError: If the network cannot be loaded or used.
        ModelError: If the classes of its rows are unknown.
    """
    network = load_network(config)
    name = network.backbone.config.name
    nothing = np.zeros((0, network.backbone.dim), np.float32)
    head = Head(nothing, nothing.sum(axis=1), ())
    record: dict[str, str] = {}
    if network.backbone.head is not None:
        head, source = name_rows(network.backbone.head, (), config.head_classes)
        record = {"assumed_names": source} if source == ASSUMED else {}
    if head.class_names is None:
        raise ModelError(
            f"the {head.num_classes:,} rows of {name} have no class names",
            remedy="Give a file with one name per row: `--head-classes FILE`.",
        )
    facts = ModelFacts(
        backbone=name,
        class_names=head.class_names,
        tasks=(0,) * head.num_classes,
        fingerprint=network.fingerprint,
        record=record,
    )
    engine = TimmEngine(network.backbone, network.transform)
    return Model(facts=facts, linear=head, origin=name, engine=engine)


def assemble(backbone: backbones.Backbone, head: Head) -> nn.Module:
    """Build the network of `backbone` with `head` as its classifier, as timm builds it.

    Raises:
        BackboneError: If the network cannot take the head.
    """
    config = backbone.config
    network: nn.Module = timm.create_model(
        config.name, pretrained=False, num_classes=head.num_classes, **model_args(backbone)
    )
    classifier = network.get_classifier()  # type: ignore[operator]
    has_bias = getattr(classifier, "bias", None) is not None
    if not isinstance(classifier, nn.Linear) or head.bias.any() > has_bias:
        raise BackboneError(
            f"timm gives {config.name} no linear classifier with a bias, and the head has one",
            remedy="Export the head alone: `clinit export RUN --out FILE.npz`.",
        )
    (name,) = (name for name, module in network.named_modules() if module is classifier)
    # Without the layer that the head replaces, if there is one.
    stored = backbone.network.state_dict()
    state = {key: stored[key] for key in stored if not key.startswith(f"{name}.")}
    state[f"{name}.weight"] = torch.from_numpy(head.weight.astype(np.float32))
    if has_bias:
        state[f"{name}.bias"] = torch.from_numpy(head.bias.astype(np.float32))
    try:
        network.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise BackboneError(
            f"{config.name} with {head.num_classes:,} classes differs in more than its classifier:"
            f" {' '.join(str(error).split())[:300]}",
            remedy="Choose another backbone.",
        ) from error
    return network.eval().requires_grad_(False)


@torch.inference_mode()
def checked_network(engine: TimmEngine, head: Head) -> nn.Module:
    """Return a network with `head`, checked on seeded noise.

    Raises:
        BackboneError: If the network cannot take the head, or computes other logits.
    """
    network = assemble(engine.backbone, head)
    backbone, transform = engine.backbone, engine.transform
    exact = replace(backbone, config=replace(backbone.config, autocast="off"))
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (2, 3, *transform.crop), generator=generator, dtype=torch.uint8)
    images = transform.normalise(noise.to(engine.device))
    features = exact.features(images).cpu().numpy()
    expected = features @ head.weight.T + head.bias
    scale = np.abs(features) @ np.abs(head.weight).T + np.abs(head.bias)
    # In the memory format of the backbone, because other formats round differently.
    with exact.config.float32():
        network.to(device=engine.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        found = network(images).cpu().numpy()
    if found.shape != expected.shape or (abs(found - expected) > TOLERANCE * scale.max()).any():
        raise BackboneError(
            f"{backbone.config.name} with the head in place of its classifier does not give the"
            " logits of the head on its features",
            remedy="Choose another backbone: something follows or surrounds its classifier.",
        )
    return network.cpu()


def model_args(backbone: backbones.Backbone) -> dict[str, Any]:
    """Return the keyword arguments of `timm.create_model`, without the number of classes."""
    return {k: v for k, v in backbone.config.model_args.items() if k != "num_classes"}


def network_of(model: Model) -> tuple[nn.Module, str]:
    """Return the network of a model with its head, and the description in its file.

    Raises:
        BackboneError: If the network cannot take the head.
    """
    engine = engine_of(model)
    network = checked_network(engine, divided(model.head, model.facts.temperature))
    return network, described(model.facts, engine, network)


def described(facts: ModelFacts, engine: TimmEngine, network: nn.Module) -> str:
    """Return the facts about a model and its network as the sealed JSON of the metadata."""
    content = {
        **asdict(facts),
        # A Python literal, because JSON has no tuples.
        "model_args": repr(model_args(engine.backbone)),
        "transform": asdict(engine.transform),
        "autocast": engine.backbone.config.autocast,
        "weights": backbones.state_sha256(network.state_dict()),
        "fingerprint": dict(facts.fingerprint.fields),
    }
    del content["digest"]
    # A path that is not UTF-8 contains surrogates, which JSON must escape.
    return DOCUMENT.text(content, indent=None)


def write_weights(network: nn.Module, text: str, draft: Path) -> None:
    """Write the state dict of a network, and its description."""
    # Clones, because `save_state` refuses tensors that share memory.
    state = {n: value.cpu().contiguous().clone() for n, value in network.state_dict().items()}
    draft.write_bytes(save_state(state, metadata={METADATA: text}))


def write_for_timm(network: nn.Module, model: Model, draft: Path) -> None:
    """Write the configuration into the draft of a folder, and compare what timm builds of it.

    Raises:
        ModelError: If timm cannot load the network from the folder.
    """
    engine = engine_of(model)
    config = json.dumps(folder_config(network, model.facts, engine), indent=2, allow_nan=False)
    (draft / CONFIG_FILE).write_text(f"{config}\n", encoding="utf-8")
    if why := _difference_in_timm(draft, network, engine.transform):
        raise ModelError(
            f"timm does not build the same {model.facts.backbone} from a folder:"
            f" {' '.join(why.split())}",
            remedy="Export to a file instead of a folder: `--out FILE.safetensors`.",
        )


def loading_line(model: Model, path: Path) -> str:
    """Return the Python expression that loads the folder or file at `path` with timm alone."""
    if is_folder(path):
        return f"timm.create_model({f'local-dir:{path}'!r}, pretrained=True)"
    args = model_args(engine_of(model).backbone)
    told = {"num_classes": model.facts.num_classes, **args, "checkpoint_path": str(path)}
    arguments = "".join(f", {name}={value!r}" for name, value in told.items())
    return f"timm.create_model({model.facts.backbone!r}{arguments})"


@torch.inference_mode()
def _difference_in_timm(folder: Path, network: nn.Module, transform: Transform) -> str | None:
    """Return how the network that timm builds from a folder differs on seeded noise, if it does."""
    try:
        loaded = timm.create_model(f"local-dir:{folder}", pretrained=True)
    except Exception as error:  # architectures raise any type
        return f"{type(error).__name__}: {error}"
    device = next(network.parameters()).device
    noise = torch.randn(2, 3, *transform.crop, generator=torch.Generator().manual_seed(0))
    images = noise.to(device, memory_format=torch.channels_last)
    expected = network(images)
    found = loaded.eval().to(device).to(memory_format=torch.channels_last)(images)
    if found.shape != expected.shape:
        return f"it has {found.shape[-1]:,} rows, not {expected.shape[-1]:,}"
    difference, largest = (found - expected).abs().max(), expected.abs().max()
    if difference <= TOLERANCE * largest:  # not true of NaN
        return None
    return f"its logits differ by {difference:g} of {largest:g}"


def folder_config(network: nn.Module, facts: ModelFacts, engine: TimmEngine) -> dict[str, Any]:
    """Return what `config.json` contains."""
    registered: Mapping[str, Any] = network.pretrained_cfg  # type: ignore[assignment]
    of_network = {name: registered.get(name) for name in _OF_THE_NETWORK}
    args, classes = model_args(engine.backbone), len(facts.class_names)
    if args.get("dynamic_img_size") or args.get("strict_img_size") is False:
        # Or timm builds the network for the size of the images, and resamples its positions.
        of_network["fixed_input_size"] = False
        args.setdefault("img_size", network.patch_embed.img_size)  # type: ignore[union-attr]
    return {
        "num_features": int(network.num_features),  # type: ignore[arg-type]
        "label_descriptions": {name: title(name) for name in facts.class_names},
        "architecture": facts.backbone.partition(".")[0],
        "num_classes": classes,
        "label_names": facts.class_names,
        "model_args": args,
        "pretrained_cfg": {
            "custom_load": False,
            **of_network,
            **data_config(engine.transform),
            "num_classes": classes,
        },
    }


def data_config(transform: Transform) -> dict[str, Any]:
    """Return the settings from which `timm.data.create_transform` makes `transform`.

    Raises:
        ModelError: If timm has no settings for it.
    """
    return {
        "input_size": (3, *transform.crop),
        "interpolation": transform.interpolation,
        "crop_pct": _crop_fraction(transform),
        "crop_mode": "center" if isinstance(transform.resize, int) else "squash",
        "mean": transform.mean,
        "std": transform.std,
    }


def _crop_fraction(transform: Transform) -> float:
    """Return the crop fraction p of fewest digits for which floor(crop / p) is the resized side.

    Usually this is the fraction that the side was computed from.
    """
    height, width = transform.crop
    resize = (transform.resize,) * 2 if isinstance(transform.resize, int) else transform.resize
    pairs = tuple(zip(transform.crop, resize, strict=True))
    for digits in range(7 if resize is transform.resize or height == width else 0):
        nearest = round(height / resize[0], digits)
        for fraction in (nearest, round(nearest - 10**-digits, digits)):
            if fraction > 0 and all(math.floor(c / fraction) == r for c, r in pairs):
                return fraction
    raise ModelError(
        f"timm has no settings for the transform of the images: {transform.describe()}",
        remedy="Export to a file instead of a folder: `--out FILE.safetensors`.",
    )
