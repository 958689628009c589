"""All settings of a study by name, and the groups that rules, records and banks speak of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from functools import cache
from typing import get_args, get_type_hints

from clinit.headtrain.setting import Field, fields_of
from clinit.headtrain.study.closed import Closed
from clinit.headtrain.study.parts import Parts
from clinit.headtrain.study.top import DerppConfig, EwcConfig

PARTS: Mapping[str, type] = {
    name: kind
    for name, hint in get_type_hints(Parts).items()
    for kind in (hint, *get_args(hint))  # Top | None
    if isinstance(kind, type) and is_dataclass(kind)
}
PER_HEAD = (
    *("init", "scale", "calibration", "lam", "fit_ridge", "weighting", "class_mean", "bias"),
    *("loss", "lr", "weight_decay"),
)
"""Settings in which the heads of one bank may differ; they share all others."""
PLACES = ("device",)
"""Settings that say where a run is computed; they are no part of its identity."""
RIVALS = {"buffer": "buffer_per_class", "buffer_per_class": "buffer"}
"""Settings that exclude each other: the one that wins leaves the other unset."""
BUFFER = ("buffer", "buffer_per_class", "buffer_split")
LOW_RANK = ("rank", "alpha", "a_init")
EWC = tuple(f"ewc_{name}" for name in fields_of(EwcConfig))
DERPP = tuple(f"derpp_{name}" for name in fields_of(DerppConfig))
CLOSED = tuple(fields_of(Closed))


@cache
def settings_of(*, top: bool = False) -> Mapping[str, Field]:
    """Return the settings of a study by name, those of top blocks included where asked for.

    Their paths start with the part: `("stream", "seed")`.
    """
    parts = {name: part for name, part in PARTS.items() if name != ("closed" if top else "top")}
    return {
        name: replace(
            each,
            path=(part, *each.path),
            setting=each.setting.of_top if top else each.setting,
        )
        for part, owner in parts.items()
        for name, each in fields_of(owner).items()
        if not (top and each.setting.of_heads)
    }
