from typing import Any

import numpy as np
import pytest

from clinit.errors import ExperimentError
from clinit.headtrain.protocol.study.rules import settings_of
from clinit.headtrain.protocol.sweep import grid as grids


@pytest.mark.parametrize("top", [False, True])
def test_every_setting_of_one_value_can_be_varied(top: bool) -> None:
    for name in settings_of(top=top):
        if name == "class_order":
            with pytest.raises(ExperimentError, match="cannot be varied"):
                grids.field_named(name, top=top)
        else:
            assert grids.field_named(name, top=top).name == name


def test_words_become_lists_and_ranges_of_the_type_of_their_field() -> None:
    words = "init=random,class-mean seed=0:3,7,1 lr=1e-4..1e-2:log5 weight-decay=0..0.1:lin3"
    grid = grids.parse_grid([*words.split(), "iterations=100..300:lin3", "lambda=0.05,auto,1"])
    assert grid == {
        "init": ("random", "class-mean"),
        "seed": (0, 1, 2, 7),
        "lr": (1e-4, 0.000316228, 1e-3, 0.00316228, 1e-2),
        "weight_decay": (0.0, 0.05, 0.1),
        "iterations": (100, 200, 300),
        "lam": (0.05, "auto", 1.0),
    }
    assert np.allclose(np.diff(np.log(np.array(grid["lr"]))), np.log(10) / 2, atol=1e-5)


@pytest.mark.parametrize(
    ("word", "fact", "remedy"),
    [
        ("lrr=1", "no field 'lrr'", "Did you mean lr?"),
        ("xyz=1", "no field 'xyz'", "Known are: "),
        ("class-order=a", "class_order cannot be varied", "seed"),
        ("seed", "'seed' is not of the form field=values", "seed=0:5"),
        ("seed=1,,2", "got ''", "seed="),
        ("seed=1.5", "got '1.5'", "seed="),
        ("lr=fast", "got 'fast'", "lr="),
        ("lam=best", "got 'best'", "lam="),
        ("lr=-1", "lr takes a number (above 0), got -1", "train-head --help"),
        ("seed=5:5", "seed=5:5 is not a range", "a:b"),
        ("lr=1e-2..1e-4:log3", "must go upwards", "a..b:log5"),
        ("lr=0..1:log3", "on a log scale from above 0", "a..b:log5"),
        ("lr=0..1:lin1", "a count of 2 to", "a..b:log5"),
        ("lr=1e-4..1e-2", "a count of 2 to", "a..b:log5"),
        ("lr=nan..1:log3", "needs two numbers", "a..b:log5"),
        ("seed=0:100000000000", "1 to 100,000 numbers", "a:b"),
        ("lr=1e-5..1e-1:log99999999", "a count of 2 to", "a..b:log5"),
        (f"seed=0:{'9' * 5000}", "got '0:9", "seed="),
        ("buffer,iterations=24000", "'24000', expected 2 values", "24000,600;192000,1200"),
        ("buffer,iterations=1,2;", "'', expected 2 values", "24000,600;192000,1200"),
        ("buffer,buffer=1,2", "buffer is given twice", "all its values at once"),
        ("buffer,seed=1,x", "got 'x'", "seed="),
    ],
)
def test_a_word_that_gives_no_runs_is_refused(word: str, fact: str, remedy: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        [*grids.runs_of(grids.parse_grid([word]))]
    assert fact in str(caught.value)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("table", "fact"),
    [
        ({"bufer": 1}, "no field 'bufer'"),
        ({"seed": []}, "got ''"),
        ({"seed": True}, "got 'true'"),
        ({"seed": 1.5}, "got '1.5'"),
        ({"lam": 0.1, "lambda": 0.2}, "lam is given twice"),
        ({"buffer,iterations": [[1, 2]], "buffer": 3}, "buffer is given twice"),
    ],
)
def test_a_table_that_is_no_grid_is_refused(table: dict[str, Any], fact: str) -> None:
    with pytest.raises(ExperimentError, match=fact):
        grids.grid_of(table)


def test_as_many_combinations_as_are_allowed_pass_and_one_more_is_refused_uncounted() -> None:
    allowed = grids.parse_grid(
        [f"seed=0:{grids.LIMIT // 4}", "init=random,class-mean", "loss=ce,mse"]
    )
    grids.check_size([allowed])
    with pytest.raises(ExperimentError, match="100,001 combinations"):
        grids.check_size([allowed, {"seed": (1,)}])


def test_fields_that_vary_together_are_rows_and_not_a_product() -> None:
    grid = grids.parse_grid(["buffer,iterations=24000,600;192000,1200", "seed=0:2"])
    assert grid["buffer,iterations"] == ((24_000, 600), (192_000, 1200))
    runs = [
        (run.stream.buffer, run.stream.iterations, run.stream.seed) for run in grids.runs_of(grid)
    ]
    assert runs == [(24_000, 600, 0), (24_000, 600, 1), (192_000, 1200, 0), (192_000, 1200, 1)]
    assert grids.grid_of({"buffer,iterations": ["24000,600", "192000,1200"], "seed": "0:2"}) == grid
    grids.check_size([grid])


@pytest.mark.parametrize(
    ("words", "top", "message"),
    [
        (["method=ncm,ridge", "lr=1e-3,1e-2"], False, "--lr does not go with --method ncm"),
        (["method,lam=lda,0.1;ncm,0.2"], False, "--lambda does not go with --method lda"),
        (["ewc_lambda=1,2"], True, "--ewc-lambda does not go with --method rehearsal"),
    ],
)
def test_what_no_run_of_a_grid_reads_is_refused(words: list[str], top: bool, message: str) -> None:
    grid = grids.parse_grid(words, top=top)
    with pytest.raises(ExperimentError, match=message):
        grids.refuse_idle([grid], grids.names_in(grid), top=top)
