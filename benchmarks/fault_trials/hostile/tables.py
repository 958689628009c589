"""Parquet files of a vast size, and with noise."""

from __future__ import annotations

import io
from collections.abc import Iterator

from fault_trials.hostile.scene import (
    Argv,
    Make,
    Scene,
    trial,
)
from fault_trials.trial import Trial


def tables(seed: str) -> Iterator[Trial]:
    """Yield Parquet files of a vast size, and with noise; without end."""
    for path, reader in _TABLES:
        yield trial(
            "Parquet",
            f"{path} is a bomb, {reader}",
            _table_bomb(path, reader),
            seed=seed,
            more_memory=_LITTLE,
        )
    number = 0
    while True:
        for path, reader in _TABLES:
            make = _table_noise(path, reader)
            yield trial("Parquet", f"{path} with noise, {reader}, {number}", make, seed=seed)
        number += 1


_TABLES = (
    *(("train.parquet", "manifest show"), ("caches/base/train/manifest.parquet", "cache show")),
    *(("runs/random/evaluations.parquet", "report"), ("runs/random/points.parquet", "report")),
    *(("runs/random/steps.parquet", "report"), ("runs/random/classes.parquet", "export")),
)
_BOMB_VALUES = 60_000_000
_LITTLE = 1 << 29
"""Of memory, so that a bomb need not be larger."""


def _table_bomb(path: str, reader: str) -> Make:
    def make(scene: Scene) -> Argv:
        import polars as pl

        file = scene.own(path)
        small = pl.read_parquet(file.read_bytes())
        told = pl.read_parquet_metadata(io.BytesIO(file.read_bytes()))
        told = {key: text for key, text in told.items() if not key.startswith("ARROW")}
        rows = _BOMB_VALUES // len(small.columns)
        columns = {
            name: pl.repeat("x" if kind == pl.String else 0, rows, dtype=kind, eager=True)
            for name, kind in small.schema.items()
        }
        # Four times, in groups of rows: what is written is a few kilobytes.
        bomb = pl.concat([pl.DataFrame(columns)] * 4, rechunk=False)
        bomb.write_parquet(file, compression="zstd", metadata=told or None, row_group_size=rows)
        return scene.reader(reader)

    return make


def _table_noise(path: str, reader: str) -> Make:
    def make(scene: Scene) -> Argv:
        file = scene.own(path)
        content = bytearray(file.read_bytes())
        for _ in range(scene.rng.choice((1, 3, 9))):
            start = scene.rng.choice((0, len(content) // 2))  # the footer is in the second half
            content[scene.rng.randrange(start, len(content))] = scene.rng.randrange(256)
        file.write_bytes(bytes(content))
        return scene.reader(reader)

    return make
