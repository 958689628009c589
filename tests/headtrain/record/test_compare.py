from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from clinit.extract.cache.head import Head
from clinit.headtrain.record.compare import circumstances, differences
from clinit.headtrain.record.format import RunRecord


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
    other = replace(record(), steps=steps, evaluations=longer)
    assert differences(other, record()) == [
        "steps: loss_old in 1 of 2 rows",
        "evaluations: 3 rows, not 2",
    ]


def test_what_a_record_of_an_earlier_version_lacks_is_not_compared() -> None:
    counts = pl.DataFrame({"correct": [3, 4], "correct_in_task": [3, 5]})
    today = replace(record(), evaluations=counts)
    older = replace(record(), evaluations=counts.with_columns(correct_in_task=None))
    assert differences(today, older) == differences(older, today) == []
    other = replace(record(), evaluations=counts.with_columns(correct_in_task=pl.lit(3)))
    assert differences(today, other) == ["evaluations: correct_in_task in 1 of 2 rows"]


def test_arrays_are_compared_by_their_bits() -> None:
    near = np.arange(6, dtype=np.float32).reshape(2, 3)
    near[1, 2] = np.nextafter(np.float32(5), np.float32(6))
    (found,) = differences(record(near), record())
    assert found.startswith("head weight: by 4.77e-07 at most")
    signed = np.arange(6, dtype=np.float32).reshape(2, 3)
    signed[0, 0] = -0.0
    assert differences(record(signed), record()) == ["head weight: by 0 at most"]
    frozen = replace(record(), top=None)
    assert differences(frozen, record()) == [
        "blocks.weight: of another shape, or in one of the two alone"
    ]


def test_floats_are_compared_by_their_bits_and_gaps_by_their_place() -> None:
    def with_losses(*losses: float | None) -> RunRecord:
        return replace(
            record(), points=pl.DataFrame({"loss_new": losses}, schema={"loss_new": pl.Float64})
        )

    nan = float("nan")
    assert differences(with_losses(nan, 1.0), with_losses(nan, 2.0)) == [
        "points: loss_new in 1 of 2 rows"
    ]
    assert differences(with_losses(0.0), with_losses(-0.0)) == ["points: loss_new in 1 of 1 rows"]
    assert differences(with_losses(None, 1.0), with_losses(0.0, 1.0)) == [
        "points: loss_new in 1 of 2 rows"
    ]
    assert differences(with_losses(nan, None), with_losses(nan, None)) == []


def test_weights_that_have_diverged_differ_without_a_number() -> None:
    wild = np.full((2, 3), np.inf, np.float32)
    assert differences(record(wild), record(wild)) == []
    assert differences(record(wild), record(-wild)) == ["head weight: by nan at most"]


def test_other_kernels_and_threads_are_named_and_unknown_ones_are_not() -> None:
    now = {"device": "cpu", "cpu": {"blas": "openblas Haswell", "torch threads": 2}}
    then = {"device": "cpu", "cpu": {"blas": "openblas SkylakeX", "torch threads": 2}}
    assert list(circumstances(then, now)) == ["cpu: blas openblas SkylakeX → openblas Haswell"]
    assert list(circumstances({"device": "cpu"}, now)) == []  # of an earlier version
