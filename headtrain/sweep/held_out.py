"""Training rows kept aside, class by class, to choose settings by instead of the test rows."""

from __future__ import annotations

from dataclasses import replace

from clinit.headtrain.groups import groups_of, held_out_rows
from clinit.headtrain.record.measured_on import held_out_manifest
from clinit.headtrain.runs import RunData
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.source import Source


def hold_out(data: RunData, fraction: float, *, seed: int) -> RunData:
    """Return the data with a part of the training rows in place of the test rows.

    Raises:
        ValueError: If `fraction` is not between 0 and 1.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"the held-out fraction must lie between 0 and 1, got {fraction}")
    sides = [
        _hold_out(side, fraction, seed, index) for index, side in enumerate((data.base, data.new))
    ]
    return replace(data, base=sides[0], new=sides[1])


def _hold_out(side: Source, fraction: float, seed: int, index: int) -> Source:
    random = generator(seed, Draw.HELD_OUT, index)
    held = held_out_rows(side.train.labels, groups_of(side.train), fraction, random)
    return replace(
        side,
        train=side.train.part(~held),
        val=side.train.part(held),
        val_manifest=held_out_manifest(fraction, seed),
    )
