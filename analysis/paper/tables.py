"""The tables of the paper: names, recipes, metrics, contradictions, and what we chose."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files

import msgspec

METHODS = {"ewc": "EWC", "derpp": "DER++"}


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table of the paper."""

    name: str
    """Name in `clinit reproduce`."""
    title: str
    recipe: str
    metrics: tuple[str, ...]
    """Metrics from left to right. `acc_pre_alone` is A_pre among only the base classes, because
    the paper does not specify which of the two accuracies it prints."""
    number: int | None = None
    """Number in the paper; None for numbers in its text."""
    effects: tuple[str, ...] = ("acc_new", "acc_all")
    """The metrics by which starts are compared."""
    runs: str = ""
    """Folder of the runs; tables with the same folder share runs."""
    is_top: bool = False
    """Whether blocks of the backbone learn, too."""
    is_aligned: bool = False
    """Whether the table needs a head aligned with squared error."""
    scaled: Mapping[str, str] = field(default_factory=dict)
    """Arguments of the reduced setting: a fiftieth of the iterations and of EWC's images, a
    hundredth of the buffers."""
    slips: tuple[str, ...] = ()
    """Contradictions within the paper."""

    @property
    def source(self) -> str:
        """Name of the table among the paper's numbers."""
        return self.name.replace("-", "_")


CONTENT = tomllib.loads((files("clinit.analysis.paper") / "tables.toml").read_text("utf-8"))
TABLES = msgspec.convert(CONTENT["table"], tuple[PaperTable, ...])
NAMES = tuple(table.name for table in TABLES)
CHOSEN: Mapping[str, str] = CONTENT["chosen"]
"""Settings that the paper leaves open, or of which it has two readings, and our choice."""


def table_named(name: str) -> PaperTable:
    """Return a table by its name.

    Raises:
        KeyError: If there is no table of this name.
    """
    return {table.name: table for table in TABLES}[name]
