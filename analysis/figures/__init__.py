"""Figures for a paper; nothing heavy is imported here, since a command's help lists their names."""

from __future__ import annotations

from enum import StrEnum


class FigureName(StrEnum):
    """The figures of a report."""

    CURVES = "curves"
    LOSS_SPIKE = "loss-spike"
    EFFICIENCY = "efficiency"
    ACCURACY_MATRIX = "accuracy-matrix"
    CONFUSIONS = "confusions"
    COLLAPSE = "collapse"
