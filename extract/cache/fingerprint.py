"""Fingerprints: everything that the features of a split depend on, by field.

Most fields name the backbone that computed the features, two the rows, three the view of the
images. Two caches may be used together if the fields of the first kind are equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clinit.errors import CacheError
from clinit.files.documents import content_sha256
from clinit.words import contrast, contrast_digests

IMPORTED = "imported"
"""A field of imported features alone; and the `backbone` of those whose user had named none."""
_ROWS = frozenset({"manifest", "features"})
_VIEW = frozenset({"augmentation", "view_seed", "view"})
_UNSAID = {"output": "pooled"}
"""Meaning of a fingerprint without a field."""
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which two fingerprints differ, and what each of them holds."""

    name: str
    one: str
    """`nothing` if the field is absent."""
    other: str

    @property
    def told(self) -> tuple[str, str]:
        """Both as a message names them, cut so that their difference is seen."""
        is_digest = any(_SHA256.fullmatch(text) for text in (self.one, self.other))
        return (contrast_digests if is_digest else contrast)(self.one, self.other)

    def __str__(self) -> str:
        return f"{self.name} ({' / '.join(self.told)})"


def _field(name: str) -> property:
    """Return the property that reads a field: a text, or None if it is absent."""
    return property(lambda fingerprint: fingerprint.fields.get(name))


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything that the features of a split depend on; empty for features in memory only."""

    fields: Mapping[str, str] = field(default_factory=dict)
    """As the documents hold them. Other versions of clinit may have more fields, or fewer."""

    backbone = _field("backbone")
    """Timm's name of the network, or what the user called the extractor."""
    weights = _field("weights")
    """SHA-256 of the weights; None for imported features."""
    timm = _field("timm")
    """Version of timm; None for imported features."""
    dtype = _field("dtype")
    """How the features are stored."""
    manifest = _field("manifest")
    """Digest of the manifest."""
    features = _field("features")
    """Digest of the file that the features were imported from; None for all others."""
    output = _field("output")
    """`projected` if the features are the output of the projection of a CLIP tower, else None."""
    augmentation = _field("augmentation")
    """The augmentation of the images of a view; None for plain images, as in the next two."""
    view_seed = _field("view_seed")
    """Seed of the view, a number as text."""
    view = _field("view")
    """Number of the view, as text."""

    @classmethod
    def of_network(
        cls,
        *,
        backbone: str,
        weights: str,
        model_args: Mapping[str, Any],
        timm: str,
        transform: str,
        decoder: str,
        dtype: str,
        autocast: str,
        output: str = "pooled",
    ) -> Fingerprint:
        """Return the fingerprint of what a network of timm computes from any images.

        Args:
            backbone: timm's name of it.
            weights: Their SHA-256.
            model_args: Keyword arguments of `timm.create_model`.
            timm: Its version.
            transform: The transform of the images, see `Transform.describe`.
            decoder: Decoders of images, and their versions.
            dtype: How the features are stored.
            autocast: Arithmetic of the forward pass: `off`, `bfloat16` or `float16`.
            output: `pooled`, or `projected` features of a CLIP tower.
        """
        # Named only if it is not what earlier versions computed: fingerprints stay.
        projected = {} if output == "pooled" else {"output": output}
        return cls(
            {
                "backbone": backbone,
                "weights": weights,
                "model_args": repr(sorted(model_args.items())),
                "timm": timm,
                "transform": transform,
                "decoder": decoder,
                "dtype": dtype,
                "autocast": autocast,
                **projected,
            }
        )

    @classmethod
    def of_import(cls, *, backbone: str, dtype: str) -> Fingerprint:
        """Return the fingerprint of features from elsewhere; `backbone` names their extractor."""
        return cls({"backbone": backbone, IMPORTED: "npy", "dtype": dtype})

    def of_rows(self, manifest: str, *, features: str | None = None) -> Fingerprint:
        """Return the fingerprint of the rows of a manifest.

        Args:
            manifest: Digest of the manifest: which samples, in which order.
            features: Digest of the file that the features were imported from.
        """
        imported = {} if features is None else {"features": features}
        return Fingerprint({**self.fields, "manifest": manifest, **imported})

    def of_view(self, augmentation: str, *, seed: int, number: int) -> Fingerprint:
        """Return the fingerprint of a random view of the same images."""
        view = {"augmentation": augmentation, "view_seed": str(seed), "view": str(number)}
        return Fingerprint({**self.fields, **view})

    def of_activations(self, manifest: str, *, cut: str, dtype: str) -> Fingerprint:
        """Return the fingerprint of activations in front of the block `cut`, of some of the rows.

        Args:
            manifest: Digest of the manifest of these rows alone.
            cut: Name of the block.
            dtype: How the activations are stored.
        """
        return Fingerprint({**self.fields, "manifest": manifest, "dtype": dtype, "cut": cut})

    @property
    def is_imported(self) -> bool:
        """Whether the features are from elsewhere."""
        return IMPORTED in self.fields

    @property
    def is_nameless(self) -> bool:
        """Whether the features are imported and name no backbone.

        So it was with imports of earlier versions without `--backbone`: equal fingerprints then
        do not mean equal origins.
        """
        return self.is_imported and self.backbone == IMPORTED

    @property
    def without_rows(self) -> Fingerprint:
        """The fields that two splits of one cache share: those about the backbone."""
        return self._without(_ROWS)

    @property
    def backbone_identifier(self) -> str:
        """SHA-256 of the fields about the backbone.

        Features of equal identifiers come from one backbone and may be mixed.
        """
        return content_sha256(dict(self.without_rows.fields))

    def fits(self, identifier: str) -> bool:
        """Return whether a head of that `backbone_identifier` reads the features; "" is unknown."""
        return identifier in ("", self.backbone_identifier)

    def differences(self, other: Fingerprint) -> tuple[Difference, ...]:
        """Return the fields that differ, in the order of this fingerprint, then of the other."""
        one, two = self.fields, other.fields
        return tuple(
            Difference(name, *(each.get(name, _UNSAID.get(name, "nothing")) for each in (one, two)))
            for name in {**one, **two}
            if one.get(name) != two.get(name)
        )

    def differences_but_of_view(self, view: Fingerprint) -> tuple[Difference, ...]:
        """Return the fields that differ, but those in which a view of the same images may."""
        free = _VIEW | {"features"}
        return self._without(free).differences(view._without(free))

    def _without(self, names: frozenset[str]) -> Fingerprint:
        return Fingerprint({name: text for name, text in self.fields.items() if name not in names})


def check_same_backbone(one: Fingerprint, other: Fingerprint) -> None:
    """Compare the fingerprints of two caches, in the entries that identify the backbone.

    Raises:
        CacheError: If fields differ (the message names them all), or the features are imported
            and name no backbone.
    """
    if differing := one.without_rows.differences(other.without_rows):
        raise CacheError(
            "the two caches hold features of different backbones:"
            f" {', '.join(map(str, differing))}",
            remedy="Extract both with the same options of `clinit extract`, or import both with the"
            " same `clinit cache import --backbone NAME`.",
        )
    if one.is_nameless:
        raise CacheError(
            "the two caches hold imported features that name no backbone: they need not be of the"
            " same one",
            remedy="Import both again with `clinit cache import --backbone NAME`.",
        )


def joined_fingerprint(parts: Sequence[Fingerprint]) -> Fingerprint:
    """Return the fingerprint of all rows of several caches.

    Raises:
        CacheError: As in `check_same_backbone`.
    """
    for other in parts[1:]:
        check_same_backbone(parts[0], other)
    if len(parts) == 1:
        return parts[0]
    imported = [each.features for each in parts if each.features]
    return parts[0].without_rows.of_rows(
        content_sha256([each.manifest for each in parts]),
        features=content_sha256(imported) if imported else None,
    )
