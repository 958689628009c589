"""Which images the accuracies of a record are measured on: test images, or held-out training ones.

The trials of a search never see the test images. In place of the digest of the manifest of those,
their records say which part of the training images was held out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_HELD_OUT = re.compile(r"held-out:(\d+(?:\.\d+)?(?:e-\d+)?):\d+")


def held_out_manifest(share: float, seed: int) -> str:
    """Return what stands for the digest of the manifest of the test images."""
    return f"held-out:{share:g}:{seed}"


def is_held_out(manifest: str) -> bool:
    """Return whether what a record says of its test images is such a stand-in, and no digest."""
    return _HELD_OUT.fullmatch(manifest) is not None


def held_out_share(info: Mapping[str, Any]) -> float | None:
    """Return the share of the training images of each class; None: it was the test images."""
    for side in ("base", "new"):
        told = str((info.get(side) or {}).get("val_manifest_digest"))
        if found := _HELD_OUT.fullmatch(told):
            return float(found[1])
    return None
