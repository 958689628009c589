from __future__ import annotations

from typing import Any

import pytest

from clinit.headtrain.config import ExperimentConfig, HeadConfig, head_ids


def test_heads_are_named_by_initialisation_and_scale() -> None:
    heads = [HeadConfig(init="random"), HeadConfig(), HeadConfig(init="class-mean", scale="none")]
    assert head_ids(heads) == ["random", "least-square-calibrated", "class-mean-none"]


def test_a_setting_that_varies_becomes_part_of_the_name() -> None:
    heads = [HeadConfig(lr=1e-3, weight_decay=0.1), HeadConfig(lr=1e-4, weight_decay=0.1)]
    assert head_ids(heads) == [
        "least-square-calibrated-lr=0.001",
        "least-square-calibrated-lr=0.0001",
    ]


def test_random_rows_have_no_scale() -> None:
    assert HeadConfig(init="random", scale="norm") == HeadConfig(init="random", scale="none")


def test_two_equal_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="two heads of a bank are the same"):
        head_ids([HeadConfig(), HeadConfig()])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tasks": 0}, "tasks must be at least 1, got 0"),
        ({"iterations": -1}, "iterations must be at least 0"),
        ({"buffer": -1}, "buffer must be at least 0"),
        ({"batch_size": 1}, "batch_size must be at least 2"),
        ({"eval_every": 0}, "eval_every must be at least 1"),
        ({"seed": -1}, "seed must lie in"),
        ({"seed": 2**32}, "seed must lie in"),
        ({"head_width": "wide"}, "head_width must be one of"),
        ({"mix": "half"}, "mix must be one of"),
        ({"buffer_split": "fair"}, "buffer_split must be one of"),
        ({"buffer_per_class": -1}, "buffer_per_class must be at least 0"),
        ({"buffer": 5, "buffer_per_class": 5}, "exclude each other"),
        ({"device": "tpu"}, "device must be one of"),
        ({"buffer": 10**30}, "buffer must be at most 1,000,000,000,000"),
        ({"buffer_per_class": 10**30}, "buffer_per_class must be at most 1,000,000,000,000"),
        ({"batch_size": 10**7}, "batch_size must be at most 1,000,000"),
    ],
)
def test_a_wrong_experiment_setting_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExperimentConfig(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"lr": float("nan")}, "lr must be positive"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0"),
        ({"init": "zeros"}, "zeros"),
        ({"scale": "big"}, "big"),
        ({"loss": "hinge"}, "hinge"),
    ],
)
def test_a_wrong_head_setting_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HeadConfig(**wrong)


@pytest.mark.parametrize(
    ("iterations", "eval_every", "points"),
    [(100, 50, (0, 50, 100)), (120, 50, (0, 50, 100, 120)), (0, 50, (0,)), (20, 50, (0, 20))],
)
def test_evaluation_points_begin_before_the_first_step_and_end_after_the_last(
    iterations: int, eval_every: int, points: tuple[int, ...]
) -> None:
    config = ExperimentConfig(iterations=iterations, eval_every=eval_every)
    assert config.evaluation_points == points
