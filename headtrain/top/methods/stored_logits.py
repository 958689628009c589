"""Logits that rows had when they were stored, each in the width of the head of that time.

Rows stored together have the same width and stay together: no row is filled up to the width of a
later head, so no fill value can enter an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.top.transfer import sent


@dataclass(frozen=True, slots=True, eq=False)
class LogitBlock:
    """Rows that were stored together."""

    rows: Int[np.ndarray, " rows"]
    """Pool rows, sorted."""
    logits: Float[Tensor, "rows width"]

    @classmethod
    def of(cls, rows: Int[np.ndarray, " rows"], logits: Float[Tensor, "rows width"]) -> LogitBlock:
        """Return a block of these rows, sorted."""
        order = np.argsort(rows)
        return cls(rows[order], logits[_index(order, logits)])

    def only(self, kept: Int[np.ndarray, " kept"]) -> LogitBlock:
        """Return the block without the rows that are not in `kept`."""
        chosen = np.flatnonzero(np.isin(self.rows, kept))
        return LogitBlock(self.rows[chosen], self.logits[_index(chosen, self.logits)])


class StoredLogits:
    """Logits by pool row, on the device that they were computed on."""

    def __init__(self) -> None:
        self._blocks: list[LogitBlock] = []

    @property
    def rows(self) -> Int[np.ndarray, " rows"]:
        """The pool rows that have logits."""
        none = np.empty(0, dtype=np.int64)
        return np.concatenate([none, *(block.rows for block in self._blocks)])

    def add(self, rows: Int[np.ndarray, " rows"], logits: Float[Tensor, "rows width"]) -> None:
        """Store the logits of rows.

        Raises:
            ValueError: If one of them is there already.
        """
        twice = np.intersect1d(rows, self.rows)
        if len(twice):
            raise ValueError(f"{len(twice):,} rows have logits already, for example row {twice[0]}")
        if len(rows):
            self._blocks.append(LogitBlock.of(rows, logits))

    def keep(self, rows: Int[np.ndarray, " rows"]) -> None:
        """Forget all rows but these.

        Raises:
            ValueError: If one of them has no stored logits.
        """
        _refuse_missing(np.setdiff1d(rows, self.rows))
        blocks = [block.only(rows) for block in self._blocks]
        self._blocks = [block for block in blocks if len(block.rows)]

    def find(
        self, rows: Int[np.ndarray, " batch"]
    ) -> list[tuple[Int[Tensor, " _"], Float[Tensor, " _ _"]]]:
        """Return places in `rows` and the logits (places, width) stored there, per block.

        Raises:
            ValueError: If one of the rows has no stored logits.
        """
        parts = []
        missing = np.ones(len(rows), dtype=bool)
        for block in self._blocks:
            place = np.searchsorted(block.rows, rows).clip(max=len(block.rows) - 1)
            hit = block.rows[place] == rows
            missing &= ~hit
            if hit.any():
                found = _index(np.flatnonzero(hit), block.logits)
                parts.append((found, block.logits[_index(place[hit], block.logits)]))
        _refuse_missing(rows[missing])
        return parts

    def state(self) -> dict[str, Tensor]:
        """Return rows and logits of each block."""
        tensors = {}
        for number, block in enumerate(self._blocks):
            tensors[f"rows.{number}"] = torch.from_numpy(block.rows)
            tensors[f"logits.{number}"] = block.logits
        return tensors

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over a `state()`."""
        self._blocks = [
            LogitBlock(state[f"rows.{number}"].cpu().numpy(), state[f"logits.{number}"])
            for number in range(len(state) // 2)
        ]


def _index(places: Int[np.ndarray, " places"], values: Tensor) -> Int[Tensor, " places"]:
    return sent(torch.from_numpy(places), values.device)


def _refuse_missing(rows: Int[np.ndarray, " rows"]) -> None:
    if len(rows):
        raise ValueError(f"{len(rows):,} rows have no stored logits, for example row {rows[0]}")
