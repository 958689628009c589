"""Records that hold what each figure shows."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]


@pytest.fixture
def make_full_run(make_run: MakeRun) -> MakeRun:
    """Make a run that was diagnosed and chose its lambdas; its classes can be renamed."""

    def make(init: str = "random", *, names: tuple[str, ...] = (), **settings: Any) -> RunRecord:
        record = make_run(init, **{"iterations": 20, "every": 5} | settings)
        for task in record.info["tasks"]:
            measures = ("nc1", "nc2", "nc3", "nc4", "d_ls", "d_ls_relative")
            values = dict.fromkeys(measures, 0.5 + 0.1 * task["task"])
            task["diagnosis"] = values | {"nc2_floor": 0.3, "nc3_floor": 0.3}
            task["lambda_curve"] = {"lam": [0.01, 0.1, 1.0], "leave_one_out_loss": [0.4, 0.3, 0.9]}
            task["initialisation"]["lam"] = 0.1
        named = dict(enumerate(names, start=2))
        classes = record.classes.with_columns(
            name=pl.Series([named.get(row, name) for row, name, *_ in record.classes.iter_rows()])
        )
        return replace(record, classes=classes)

    return make
