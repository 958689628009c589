"""Fingerprints: everything that the features of a split depend on, by field.

Most fields identify the backbone that computed the features, two the rows (`manifest`, `features`),
and three the random view of the images. Two caches may be used together if their backbone fields
are equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clinit.errors import CacheError
from clinit.files.documents import content_sha256
from clinit.words import contrast, contrast_digests

IMPORTED = "imported"
"""Field that only imported features have; also the `backbone` of an import without a name."""
_ROWS = frozenset({"manifest", "features"})
_VIEW = frozenset({"augmentation", "view_seed", "view"})
_UNSAID = {"output": "pooled"}
"""Meaning of a fingerprint that lacks a field."""
VIEW_NUMBER = re.compile("0|[1-9][0-9]{0,9}")
"""The number or the seed of a view, as text."""
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A field in which two fingerprints differ, with both of its values."""

    name: str
    one: str
    """Value in the first fingerprint (`other`: in the second); `nothing` if the field is absent."""
    other: str

    @property
    def told(self) -> tuple[str, str]:
        """Both values for a message, shortened in a way that keeps their difference visible."""
        is_digest = any(_SHA256.fullmatch(text) for text in (self.one, self.other))
        return (contrast_digests if is_digest else contrast)(self.one, self.other)

    def __str__(self) -> str:
        return f"{self.name} ({' / '.join(self.told)})"


def _field(name: str) -> property:
    """Return a property that reads the field `name`: a text, or None if the field is absent."""
    return property(lambda fingerprint: fingerprint.fields.get(name))


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything that the features of a split depend on; empty for features made in memory."""

    fields: Mapping[str, str] = field(default_factory=dict)
    """Fields as stored in `plan.json`. Other versions of clinit may write more fields, or fewer."""

    backbone = _field("backbone")
    """Timm's name of the network; for imported features, the extractor's name from the user."""
    weights = _field("weights")
    """SHA-256 of the weights; None for imported features."""
    timm = _field("timm")
    """Version of timm; None for imported features."""
    dtype = _field("dtype")
    manifest = _field("manifest")
    features = _field("features")
    """Digest of the file that the features were imported from; None if clinit extracted them."""
    output = _field("output")
    """`projected` for features after the projection of a CLIP tower, else None."""
    augmentation = _field("augmentation")
    """The augmentation of a view. This field and the next two are None for plain images."""
    view_seed = _field("view_seed")
    """Seed of the view, a number as text."""
    view = _field("view")
    """Number of the view, as text."""

    @classmethod
    def of_network(cls, *, output: str = "pooled", **fields: str) -> Fingerprint:
        """Return the fingerprint of features that a timm network computes from any images.

        Args:
            output: `pooled`, or `projected` features of a CLIP tower.
            fields: `backbone` and version of `timm`, SHA-256 of the `weights`, `model_args`,
                `transform`, `decoder` (with versions), `dtype` and `autocast`.
        """
        # Earlier versions computed pooled features only and had no such field: without it, the
        # fingerprints of pooled features stay equal to earlier fingerprints.
        return cls(fields if output == "pooled" else {**fields, "output": output})

    @classmethod
    def of_import(cls, *, backbone: str, dtype: str) -> Fingerprint:
        """Return the fingerprint of imported features; `backbone` names their extractor."""
        return cls({"backbone": backbone, IMPORTED: "npy", "dtype": dtype})

    def of_rows(self, manifest: str, *, features: str | None = None) -> Fingerprint:
        """Return this fingerprint with the fields that identify the rows.

        Args:
            manifest: Digest of the manifest, which lists the samples in order.
            features: Digest of the file that the features were imported from.
        """
        imported = {} if features is None else {"features": features}
        return Fingerprint({**self.fields, "manifest": manifest, **imported})

    def of_view(self, augmentation: str, *, seed: int, number: int) -> Fingerprint:
        """Return the fingerprint of random view `number` of the same images."""
        view = {"augmentation": augmentation, "view_seed": str(seed), "view": str(number)}
        return Fingerprint({**self.fields, **view})

    def of_activations(self, manifest: str, *, cut: str, dtype: str) -> Fingerprint:
        """Return the fingerprint of stored inputs (activations) of the block `cut`.

        Args:
            manifest: Digest of the manifest that lists only the rows with stored activations.
            cut: Name of the block.
            dtype: How the activations are stored.
        """
        return Fingerprint({**self.fields, "manifest": manifest, "dtype": dtype, "cut": cut})

    @property
    def is_imported(self) -> bool:
        """Whether the features are imported."""
        return IMPORTED in self.fields

    @property
    def without_rows(self) -> Fingerprint:
        """Only the backbone fields, which all splits of a cache share."""
        return self._without(_ROWS)

    @property
    def backbone_identifier(self) -> str:
        """SHA-256 of the backbone fields: features with equal identifiers may be mixed."""
        return content_sha256(dict(self.without_rows.fields))

    def fits(self, identifier: str) -> bool:
        """Return whether a head with this `backbone_identifier` fits; "" is unknown and fits."""
        return identifier in ("", self.backbone_identifier)

    def differences(self, other: Fingerprint) -> tuple[FieldDifference, ...]:
        """Return the fields that differ, in this fingerprint's order, then in the other's."""
        both = self.fields, other.fields
        differing = [n for n in {**both[0], **both[1]} if both[0].get(n) != both[1].get(n)]
        told = ([each.get(n, _UNSAID.get(n, "nothing")) for each in both] for n in differing)
        return tuple(FieldDifference(n, *pair) for n, pair in zip(differing, told, strict=True))

    def _without(self, names: frozenset[str]) -> Fingerprint:
        return Fingerprint({name: text for name, text in self.fields.items() if name not in names})


def mismatches(
    one: Fingerprint, other: Fingerprint, widths: tuple[int, int]
) -> tuple[FieldDifference, ...]:
    """Return all that must agree between features of one use, and does not; `widths` are theirs.

    Features that were imported under one name of a backbone may have several widths.
    """
    width = (FieldDifference("width", *map(str, widths)),) if widths[0] != widths[1] else ()
    return (*one.without_rows.differences(other.without_rows), *width)


def check_same_backbone(one: Fingerprint, other: Fingerprint, widths: tuple[int, int]) -> None:
    """Check that two caches were computed by the same backbone; `widths` are of their features.

    Raises:
        CacheError: If backbone fields differ (the message lists them all), or the features were
            imported without a name of their backbone.
    """
    if differing := mismatches(one, other, widths):
        raise CacheError(
            "the two caches contain features of different backbones:"
            f" {', '.join(map(str, differing))}",
            remedy="Extract both with the same options of `clinit extract`, or import both with the"
            " same `clinit cache import --backbone NAME`.",
        )
    if one.is_imported and one.backbone == IMPORTED:  # earlier versions, without `--backbone`
        raise CacheError(
            "the two caches contain features that were imported without the name of their"
            " backbone, so clinit cannot know whether it is the same",
            remedy="Import both again with `clinit cache import --backbone NAME`.",
        )


def joined_fingerprint(parts: Sequence[Fingerprint], widths: Sequence[int]) -> Fingerprint:
    """Return the fingerprint of the joined rows of several caches; `widths` are of their features.

    Raises:
        CacheError: As in `check_same_backbone`.
    """
    for other, width in zip(parts[1:], widths[1:], strict=True):
        check_same_backbone(parts[0], other, (widths[0], width))
    if len(parts) == 1:
        return parts[0]
    imported = [each.features for each in parts if each.features]
    return parts[0].without_rows.of_rows(
        content_sha256([each.manifest for each in parts]),
        features=content_sha256(imported) if imported else None,
    )


def check_view(folder: Path, view: Fingerprint, plain: Fingerprint, first: Fingerprint) -> None:
    """Check that `folder` contains the view of the train split that its name, a number, promises.

    Args:
        folder: Folder of the view.
        view: Fingerprint of the view.
        plain: Fingerprint of the train split.
        first: Fingerprint of the first view; all views must have its seed and augmentation.

    Raises:
        CacheError: If the folder does not contain that view.
    """
    one, other = (each._without(_VIEW | {"features"}) for each in (plain, view))
    wrong = [(each.name, each.other, each.one) for each in one.differences(other)]
    wanted = {"augmentation": first.augmentation, "view_seed": first.view_seed, "view": folder.name}
    for name, text in wanted.items():
        given = view.fields.get(name, "nothing")
        if given != text:
            wrong.append((name, given, text or "a text"))
        elif name != "augmentation" and not VIEW_NUMBER.fullmatch(given):
            wrong.append((name, given, "a number"))
    for name, found, expected in wrong:
        raise CacheError(
            f"{folder} is not a view of the train split of its cache: its features have {name} ="
            f" {found}, expected {name} = {expected}",
            remedy=f"Remove {folder}, then run the `clinit extract` command of this cache with"
            " --views: it computes the missing views.",
        )
