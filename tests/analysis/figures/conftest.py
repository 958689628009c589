"""Records that hold what each figure shows."""

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from clinit.headtrain.protocol.record.format import RunRecord
from tests.analysis.conftest import MakeRun


@pytest.fixture
def make_full_run(make_run: MakeRun) -> MakeRun:
    """Make a run whose classes can be renamed."""

    def make(init: str = "random", *, names: tuple[str, ...] = (), **settings: Any) -> RunRecord:
        record = make_run(init, **{"iterations": 20, "every": 5} | settings)
        named = dict(enumerate(names, start=2))
        classes = record.classes.with_columns(
            name=pl.Series([named.get(row, name) for row, name, *_ in record.classes.iter_rows()])
        )
        return replace(record, classes=classes)

    return make
