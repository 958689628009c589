"""The images, the network and the transform behind a feature cache, as it records them.

The fingerprint says which they were; only the weights themselves are elsewhere. Whatever file
they come from, they count only if their hash is the one in the fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import timm

from clinit.errors import BackboneError, CacheError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.plan import Plan
from clinit.extract.cache.read import CacheSplit
from clinit.extract.cache.summary import RunFacts
from clinit.extract.dataset.decode import decoder_version
from clinit.extract.network.backbone import Backbone, BackboneConfig, load_backbone
from clinit.extract.network.model_args import read_model_args
from clinit.extract.network.transform import Transform
from clinit.extract.work.run import Network
from clinit.machine import choose_device
from clinit.words import contrast_digests

_RIGHT_FILE = (
    "Give the file of the weights that the features were extracted with: `--weights FILE`."
)


def reload(
    split: CacheSplit, *, weights: Path | None = None, device: str = "cpu"
) -> tuple[Backbone, Transform]:
    """Return the backbone that computed the features of a split, and what its images went through.

    Args:
        split: A split of a cache.
        weights: The file of the weights; default: where they were at extraction, or timm's
            pretrained weights where no file was given then.
        device: `auto`, `cpu`, `cuda` or `cuda:<index>`.

    Raises:
        CacheError: If no network of ours computed the features, its weights are not where they
            were, or these are other weights.
        BackboneError: If the weights cannot be had or do not fit the network.
        DeviceError: If the device is absent.
    """
    found = weights if weights is not None else stored_weights(split)
    return rebuild(split.fingerprint, found, origin=str(split.path), device=device)


def rebuild(
    fingerprint: Fingerprint, weights: Path | None, *, origin: str, device: str = "cpu"
) -> tuple[Backbone, Transform]:
    """Return the backbone and the transform of a fingerprint.

    Args:
        fingerprint: That of a cache, or of a run record.
        weights: The file of the weights; None takes timm's pretrained weights.
        origin: What holds the fingerprint, for messages.
        device: `auto`, `cpu`, `cuda` or `cuda:<index>`.

    Raises:
        CacheError: If no network of ours computed the features, or these are other weights.
        BackboneError: If the weights cannot be had or do not fit the network.
        DeviceError: If the device is absent.
    """
    expected = _extracted_weights(fingerprint, origin)
    transform, config = _parse(fingerprint, origin)
    config = replace(config, weights=weights, device=str(choose_device(device)))
    try:
        backbone = load_backbone(config)
    except BackboneError as error:
        if weights is None:
            raise
        raise BackboneError(str(error), remedy=_RIGHT_FILE) from error
    if backbone.weights_sha256 != expected:
        found = f"timm's pretrained weights of {config.name}" if weights is None else str(weights)
        now, then = contrast_digests(backbone.weights_sha256, expected)
        raise CacheError(
            f"{found}: SHA-256 {now}, but the features of {origin} were extracted with weights of"
            f" SHA-256 {then}",
            remedy=_RIGHT_FILE,
        )
    return backbone, transform


def stored_weights(split: CacheSplit) -> Path | None:
    """Return where the weights were at extraction; None for timm's own.

    Raises:
        CacheError: If nobody knows, or the file is gone.
    """
    _extracted_weights(split.fingerprint, str(split.path))
    return weights_file(split.path, None, split.summary.run)


def _extracted_weights(fingerprint: Fingerprint, origin: str) -> str:
    """Return the digest of the weights of the network that computed the features."""
    if fingerprint.weights is None:
        raise CacheError(
            f"no network is known for the features of {origin}: they were imported from"
            f" {'elsewhere' if fingerprint.backbone is None else fingerprint.backbone!r}",
            remedy="Extract the images with `clinit extract` to have the network too.",
        )
    return fingerprint.weights


def _parse(fingerprint: Fingerprint, origin: str) -> tuple[Transform, BackboneConfig]:
    fields = fingerprint.fields
    try:
        transform = Transform.parse(fields["transform"])
        config = BackboneConfig(
            name=fields["backbone"],
            model_args=read_model_args(fields["model_args"]),
            autocast=fields.get("autocast", "off"),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CacheError(
            f"the fingerprint of {origin} does not describe a network and a transform: {error}",
            remedy="Run the `clinit extract` command of the cache into a new folder.",
        ) from error
    return transform, config


_DEVICES = ("auto", "cpu", "cuda")


def rebuild_network(
    plan: Plan, weights: Path | None, device: str | None, *, origin: str
) -> Network:
    """Return the network of a plan, and the fingerprint of what it computes here and now.

    Args:
        plan: That of a split.
        weights: The file of the weights; None takes timm's pretrained weights.
        device: `auto`, `cpu`, `cuda`, `cuda:<index>`; None takes the kind of the plan.
        origin: What holds the plan, for messages.

    Raises:
        CacheError: If no network of ours computed the features, these are other weights, or a
            library has another version.
        ClinitError: If the backbone does not serve.
    """
    told, device = plan.fingerprint, device or plan.device or "cpu"
    if device not in _DEVICES and not device.startswith("cuda:"):
        raise CacheError(
            f"the features of {origin} were computed on {device}: they were merged",
            remedy="Extract the images into a new folder with `clinit extract`.",
        )
    backbone, transform = rebuild(told, weights, origin=origin, device=device)
    here = Fingerprint.of_network(
        backbone=backbone.config.name,
        weights=backbone.weights_sha256,
        model_args=backbone.config.model_args,
        timm=timm.__version__,
        transform=transform.describe(),
        decoder=decoder_version(),
        dtype=plan.dtype,
        autocast=backbone.config.autocast,
    )
    for each in told.without_rows.differences(here):
        raise CacheError(
            f"the features of {origin} were computed with {each.name} = {each.one}, here it is"
            f" {each.other}: they would be others",
            remedy="Install that version, or run the `clinit extract` command of this cache into a"
            " new folder.",
        )
    return Network(backbone, transform, here)


@dataclass(frozen=True, slots=True, eq=False)
class Networks:
    """The networks of the splits of one cache, each loaded once."""

    path: Path
    """The cache."""
    weights: Path | None
    """The file of the weights, for all of them; None takes the one that is recorded."""
    device: str | None
    """As in `rebuild_network`."""
    _loaded: dict[tuple[Path | None, str], Network] = field(default_factory=dict, init=False)
    """By weights and the device of the plan: splits have the same more often than not."""

    def of(self, plan: Plan, facts: RunFacts) -> Network:
        """Return the network of a split.

        Raises:
            ClinitError: As `rebuild_network` and `weights_file`.
        """
        weights = weights_file(self.path, self.weights, facts)
        if (weights, plan.device) not in self._loaded:
            network = rebuild_network(plan, weights, self.device, origin=str(self.path))
            self._loaded[weights, plan.device] = network
        return self._loaded[weights, plan.device]


def images_root(path: Path, given: Path | None, facts: RunFacts) -> Path:
    """Return the folder of the images of the cache at `path`: the given one, or where it was.

    Raises:
        CacheError: If nobody knows, or nothing is there.
    """
    if given is not None:
        if not given.is_dir():
            raise CacheError(f"no folder at {given}", remedy="Give the folder of the images.")
        return given
    if facts.root is None:
        raise CacheError(
            f"nothing whole in {path} says where its images were",
            remedy="Say where they are with `--root DIR`.",
        )
    if not Path(facts.root).is_absolute():
        raise CacheError(
            f"the images of {path} were in {facts.root}, seen from a folder that an earlier version"
            " of clinit has not recorded",
            remedy="Say where they are with `--root DIR`, or run the `clinit extract` command of"
            " this cache again: it records it.",
        )
    if not Path(facts.root).is_dir():
        raise CacheError(
            f"the images of {path} were in {facts.root}, where nothing is now",
            remedy="Say where they are with `--root DIR`.",
        )
    return Path(facts.root)


def weights_file(path: Path, given: Path | None, facts: RunFacts) -> Path | None:
    """Return the file of the weights of the cache at `path`; None for timm's own.

    Raises:
        CacheError: If nobody knows, or nothing is there.
    """
    if given is not None:
        return given
    if isinstance(facts.weights, msgspec.UnsetType):
        raise CacheError(
            f"nothing in {path} says where the weights were",
            remedy="Give them with `--weights FILE`, or run the `clinit extract` command of this"
            " cache again: it adds the path and computes nothing.",
        )
    if facts.weights is not None and not Path(facts.weights).is_file():
        raise CacheError(
            f"the weights of the features in {path} were at {facts.weights}, where nothing is now",
            remedy="Say where they are with `--weights FILE`.",
        )
    return None if facts.weights is None else Path(facts.weights)
