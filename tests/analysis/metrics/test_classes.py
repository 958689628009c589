from typing import Any

import numpy as np
import polars as pl
import pytest

from clinit.analysis.metrics.accuracy import confusions
from clinit.headtrain.protocol.record.info import TABLES

SCHEMA: Any = TABLES["mistakes"]
CLASSES = pl.DataFrame(
    {
        "row": pl.Series(range(7), dtype=pl.Int32),
        "name": ["cat", "dog", "cow", "oak", "elm", "car", "bus"],
        "task": pl.Series([0, 0, 0, 1, 1, 2, 2], dtype=pl.Int16),
        "train_rows": pl.Series([9] * 7, dtype=pl.Int64),
        "val_rows": pl.Series([10, 20, 30, 40, 10, 20, 5], dtype=pl.Int64),
    }
)


def random_mistakes(seed: int, count: int = 400) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        task = int(rng.integers(1, 3))
        seen = 5 if task == 1 else 7
        row, predicted = (int(each) for each in rng.choice(seen, 2, replace=False))
        rows.append((task, 9, row, int(rng.integers(5)), predicted))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def naive(mistakes: pl.DataFrame, last: int) -> list[tuple[Any, ...]]:
    """Each pair counted by itself."""
    known = {row: (name, task, total) for row, name, task, _, total in CLASSES.iter_rows()}
    found = []
    for true in known:
        for predicted in known:
            count = sum(
                1
                for task, _, row, _, other in mistakes.iter_rows()
                if task == last and row == true and other == predicted
            )
            (name, task, total), (other, came, _) = known[true], known[predicted]
            if count and task != came:
                share = 100 * count / total
                line = (name, other, task, came, task > came, came > task, count, total, share)
                found.append((-count, -share, true, predicted, line))
    return [line for *_, line in sorted(found)]


@pytest.mark.parametrize("seed", range(3))
def test_pairs_agree_with_counting_each_by_itself(seed: int) -> None:
    mistakes = random_mistakes(seed)
    found = confusions(mistakes, CLASSES)
    assert found.columns[:2] == ["true_class", "predicted_class"]
    assert found.rows() == [pytest.approx(line) for line in naive(mistakes, 2)]
    assert confusions(mistakes, CLASSES, 3).rows() == found.rows()[:3]
