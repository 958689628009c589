"""The images and the network of a cache, as it records them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import timm

from clinit.errors import CacheError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.plan import Plan
from clinit.extract.cache.summary import RunFacts
from clinit.extract.dataset.decode import decoder_version
from clinit.extract.network.reload import rebuild
from clinit.extract.work.run import Network

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
            f"nothing whole in {path} says where the weights were",
            remedy="Say where they are with `--weights FILE`.",
        )
    if facts.weights is not None and not Path(facts.weights).is_file():
        raise CacheError(
            f"the weights of the features in {path} were at {facts.weights}, where nothing is now",
            remedy="Say where they are with `--weights FILE`.",
        )
    return None if facts.weights is None else Path(facts.weights)
