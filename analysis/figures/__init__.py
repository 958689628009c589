"""Figures for a paper. Imports stay light here, because a command's help lists their names."""

from __future__ import annotations

from enum import StrEnum


class FigureName(StrEnum):
    """The figures of a report."""

    CURVES = "curves"
    EFFICIENCY = "efficiency"
