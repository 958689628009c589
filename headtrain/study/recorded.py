"""Recorded settings: what those of earlier versions meant, and which run they identify."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clinit.headtrain.study.study import Study, identity_text


def identity_of(recorded: Mapping[str, Any]) -> str:
    """Return the identity of a run by its recorded settings; what is missing has its default."""
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in recorded.items()}
    try:
        return Study.of(as_of_today(settings), top="top_blocks" in settings).identity
    except ValueError:  # recorded by another version: equal to no run of this one
        return identity_text(settings)


def as_of_today(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded settings, those of earlier versions with what they meant there.

    Before there was `calibration`, rows were calibrated on their own logits, and `auto` chose
    lambda by held-out error.
    """
    found = dict(recorded)
    if "init" in found and "calibration" not in found:
        found["calibration"] = "in-sample"
        if found.get("lam") == "auto":
            found["lam"] = "held-out"
    return found
