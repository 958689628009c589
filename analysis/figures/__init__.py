"""Figures for a paper; nothing heavy is imported here, since a command's help lists their names."""

from __future__ import annotations

from enum import StrEnum


class FigureName(StrEnum):
    """The figures of a report."""

    CURVES = "curves"
    EFFICIENCY = "efficiency"
