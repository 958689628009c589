"""The numbers that the paper prints, 434 of them, by table and place.

Source: M. Y. Harun, C. Kanan, "A good start matters: enhancing continual learning with data-driven
weight initialization", CoLLAs 2025, tables 1 to 8 and the text on neural collapse.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import BytesIO

import polars as pl


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """What tells the lines of a table of the paper apart."""

    method: str
    loss: str
    iterations: int
    buffer: int | None
    init: str

    @property
    def group(self) -> tuple[str, str, int, int | None]:
        """What the lines that are compared share."""
        return self.method, self.loss, self.iterations, self.buffer


@dataclass(frozen=True, slots=True)
class Printed:
    """A number of the paper."""

    value: float
    deviation: float | None
    """Standard deviation over data orders, where the paper prints one."""


Cells = dict[Place, dict[str, Printed]]
"""The numbers of a table by place and metric, in the order of the paper."""


def paper_cells(table: str) -> Cells:
    """Return the numbers of a table; `table` is a name such as `last_layer`."""
    found: Cells = {}
    for row in _numbers().filter(pl.col("table") == table).iter_rows(named=True):
        place = Place(
            row["method"] or "",
            row["loss"],
            row["iterations"] or 0,
            row["buffer"],
            row["init"] or "",
        )
        found.setdefault(place, {})[row["metric"]] = Printed(row["value"], row["std"])
    return found


@cache
def _numbers() -> pl.DataFrame:
    content = (files("clinit.analysis.paper") / "numbers.csv").read_bytes()
    return pl.read_csv(BytesIO(content), schema_overrides={"std": pl.Float64})
