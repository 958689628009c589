from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from clinit.extract.cache.head import Head
from clinit.headtrain.protocol.record.format import RunRecord, differences


def record(weight: np.ndarray | None = None) -> RunRecord:
    weight = np.arange(6, dtype=np.float32).reshape(2, 3) if weight is None else weight
    return RunRecord(
        path=None,
        info={},
        classes=pl.DataFrame({"row": [0, 1]}),
        steps=pl.DataFrame({"loss": [1.0, float("nan")], "loss_old": [None, 0.5]}),
        evaluations=pl.DataFrame({"correct": [3, 4]}),
        points=pl.DataFrame({"loss_new": [0.1], "elapsed_s": [7.0]}),
        head=Head(weight, np.zeros(2, np.float32), ("a", "b")),
        top={"blocks.weight": np.ones(3, np.float32)},
    )


def test_a_record_is_as_itself_whatever_it_took() -> None:
    slower = replace(record(), points=pl.DataFrame({"loss_new": [0.1], "elapsed_s": [9.0]}))
    assert differences(record(), slower) == []


def test_each_part_that_differs_is_named() -> None:
    steps = pl.DataFrame({"loss": [1.0, float("nan")], "loss_old": [None, 0.25]})
    longer = pl.DataFrame({"correct": [3, 4, 5]})
    other = replace(record(), steps=steps, evaluations=longer, top=None)
    assert [each.partition(":")[0] for each in differences(other, record())] == [
        "steps",
        "evaluations",
        "blocks.weight",
    ]


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ((5.0,), (float(np.nextafter(np.float32(5), np.float32(6))),), "by 4.77e-07 at most"),
        ((0.0,), (-0.0,), "by 0 at most"),
        ((np.inf,), (-np.inf,), "by 0 at most"),
        ((np.inf,), (np.inf,), None),
    ],
)
def test_arrays_are_compared_by_their_bits(
    one: tuple[float], other: tuple[float], found: str | None
) -> None:
    heads = [record(np.array([(0.0,), each], np.float32)) for each in (one, other)]
    assert differences(*heads) == ([f"head weight: {found}"] if found else [])


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ((np.nan, 1.0), (np.nan, 2.0), True),
        ((None, 1.0), (0.0, 1.0), True),
        ((np.nan, None), (np.nan, None), False),
    ],
)
def test_gaps_and_what_is_no_number_equal_themselves_alone(
    one: tuple[float | None, ...], other: tuple[float | None, ...], differ: bool
) -> None:
    schema = {"loss_new": pl.Float64}
    tables = [pl.DataFrame({"loss_new": each}, schema=schema) for each in (one, other)]
    found = differences(*(replace(record(), points=table) for table in tables))
    assert found == (["points: loss_new"] if differ else [])
