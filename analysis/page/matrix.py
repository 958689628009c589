"""The accuracy matrix of a run: on the classes of each task, after each task."""

from __future__ import annotations

from typing import Any

from clinit.analysis.report.run import Row


def matrix(row: Row) -> dict[str, Any]:
    """Return the matrix of a row of the report, and what is made from it.

    `cells` has a line after each task, and a column on the base classes and on those of each task.
    """
    return {
        "tasks": [task["task"] for task in row["tasks"]],
        "cells": [
            [None if value is None else round(value, 2) for value in line]
            for line in row["accuracy_matrix"]
        ],
        "incremental": _percent(row["average_incremental_accuracy"]),
        "forgetting": _percent(row["forgetting"]),
    }


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f} %"
