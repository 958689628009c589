"""All settings of a study as keyword arguments, for editors and type checkers.

A list in place of a value means one run per value; several lists mean all combinations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias, TypedDict, TypeVar

from clinit.headtrain.heads.start.settings import Init, NewShare, Scale, Weighting
from clinit.headtrain.protocol.study.parts import (
    AnchorKind,
    Device,
    Loss,
    Method,
    Precision,
    Protocol,
    RateSchedule,
)
from clinit.headtrain.protocol.study.rules import settings_of

T = TypeVar("T")
Many: TypeAlias = T | Sequence[T]


class HeadSettings(TypedDict, total=False):
    """Settings of runs that train heads, as the options of `clinit train-head`."""

    method: Many[Method]
    tasks: Many[int]
    stop_after: Many[int]
    iterations: Many[int]
    buffer: Many[int]
    buffer_per_class: Many[int]
    buffer_split: Many[str]
    old_rows: Many[str]
    mix: Many[str]
    batch_size: Many[int]
    shots: Many[int]
    eval_every: Many[int | str]
    mistakes: Many[str]
    class_order: Sequence[str]
    seed: Many[int]
    init: Many[Init | Callable[..., Any]]
    scale: Many[Scale]
    calibration: Many[str]
    new_share: Many[NewShare]
    lam: Many[float | str]
    fit_ridge: Many[float]
    max_old_loss: Many[float]
    weighting: Many[Weighting]
    class_mean: Many[str]
    bias: Many[str]
    init_rows: Many[str]
    head_width: Many[str]
    protocol: Many[Protocol]
    loss: Many[Loss | Callable[..., Any]]
    step: Many[str | Callable[..., Any]]
    lr: Many[float]
    schedule: Many[RateSchedule]
    weight_decay: Many[float]
    anchor: Many[AnchorKind]
    anchor_strength: Many[float | str]
    precision: Many[Precision]
    device: Many[Device]
    slda_shrinkage: Many[float]
    ranpac_width: Many[int]
    ranpac_lam: Many[float | str]


def combinations(settings: Mapping[str, Any], *, top: bool = False) -> Iterable[dict[str, Any]]:
    """Return one mapping of settings per combination of the values in lists, last list fastest."""
    every = settings_of(top=top)
    values = [
        list(value)
        if isinstance(value, list | tuple | range) and not (name in every and every[name].items)
        else [value]
        for name, value in settings.items()
    ]
    return (dict(zip(settings, each, strict=True)) for each in product(*values))
