"""Fingerprints: everything that the features of a split depend on, by field.

Most fields say which backbone computed them, some say of which rows. Two caches may be used
together where the first kind is equal.
"""

from __future__ import annotations

from collections.abc import Mapping

MANIFEST = "manifest"
"""Digest of the manifest: which samples, in which order."""
FEATURES = "features"
"""Digest of the file that the features were imported from."""
_ABOUT_ROWS = frozenset({MANIFEST, FEATURES})

IMPORTED = "imported"
"""A field of imported features alone; and what `backbone` was where the user had named none."""


def backbone_fields(fingerprint: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that say which backbone: those that two splits of one cache share."""
    return {name: text for name, text in fingerprint.items() if name not in _ABOUT_ROWS}


def is_nameless(fingerprint: Mapping[str, str]) -> bool:
    """Return whether nobody has said what computed the features.

    So it was with imports of earlier versions without `--backbone`: equal fingerprints then
    say nothing about equal origins.
    """
    return IMPORTED in fingerprint and fingerprint.get("backbone") == IMPORTED
