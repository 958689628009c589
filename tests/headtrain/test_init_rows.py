"""Which rows initialisation may look at, and what an average over them is."""

from collections.abc import Mapping
from typing import Any

import pytest

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.protocol.experiment import RunData, run_experiment
from clinit.headtrain.protocol.record.info import settings_of
from clinit.headtrain.protocol.study.study import Study, identity_of
from clinit.headtrain.protocol.sweep.grid import run_of
from tests.headtrain.protocol.test_experiment import make_base, make_head, make_new

SMALL: dict[str, Any] = {"tasks": 2, "iterations": 0, "batch_size": 8, "device": "cpu"}
SIDES = make_base(train=(12, 3, 9, 20, 1, 7, 8, 5)), make_new(train=(15, 6, 9, 11, 5, 8, 7))


def study(*settings: Mapping[str, Any], **more: Any) -> Study:
    return Study.of({name: value for each in (*settings, more) for name, value in each.items()})


def test_a_buffer_is_kept_for_initialisation_alone() -> None:
    kept = study(method="naive", init_rows="buffer").resolved().stream
    assert (kept.buffer, kept.mix) == (24_000, "text")
    for method, rows, expected in (
        ("naive", "buffer", 60),
        ("naive", "new", None),
        ("joint", "new", None),
    ):
        assert study(method=method, init_rows=rows, buffer=60).resolved().stream.buffer == expected


@pytest.mark.parametrize(
    ("changes", "classes"),
    [
        ({"buffer": 20}, 12),
        ({"buffer": 20, "init_rows": "new"}, 12),
        ({"method": "naive"}, 4),
        ({"method": "naive", "buffer": 20, "init_rows": "buffer"}, 4),
    ],
)
def test_heads_are_diagnosed_on_the_rows_that_they_were_trained_on(
    changes: dict[str, Any], classes: int
) -> None:
    measured: list[int] = []

    def diagnose(statistics: ClassStatistics, rows: Rows) -> dict[str, Any]:
        measured.append(int((statistics.totals > 0).sum()))
        return {}

    asked = study(SMALL, {"scale": "norm", "lam": 0.05}, **changes)
    run_experiment(RunData(*SIDES, make_head()), [asked], diagnose=diagnose)
    assert measured[0] == classes


@pytest.mark.parametrize(
    ("method", "rows"), [("rehearsal", "buffer"), ("naive", "new"), ("ewc", "new")]
)
def test_records_of_before_are_read_as_what_they_did(method: str, rows: str) -> None:
    settings = settings_of({"config": {"method": method, "init": "least-square"}})
    assert (settings["init_rows"], settings["weighting"]) == (rows, "class")
    if method != "ewc":
        run_now = run_of({"method": method, "init": "least-square"})
        old = {k: v for k, v in run_now.values().items() if k not in ("init_rows", "weighting")}
        assert identity_of(old) == run_now.identity
