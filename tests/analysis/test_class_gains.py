from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from clinit.analysis.metrics.classes import class_gains, own_task_accuracies
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]


def naive(record: RunRecord) -> dict[str, float]:
    """The last evaluation of each class's own task, found row by row."""
    found: dict[str, float] = {}
    for row, name, origin, *_ in record.classes.iter_rows():
        best = -1
        for task, iteration, other, correct, total, *_ in record.evaluations.iter_rows():
            if other == row and task == origin and iteration >= best and total:
                best, found[name] = iteration, 100 * correct / total
    return found


@pytest.mark.parametrize("untested", [None, 2])
def test_accuracies_are_those_at_the_end_of_the_own_task(
    make_run: MakeRun, untested: int | None
) -> None:
    record = make_run("least-square", untested_task=untested)
    found = dict(own_task_accuracies(record).iter_rows())
    assert found == pytest.approx(naive(record))
    assert not found.keys() & {"class 0", "class 1", "class 2", "class 3"}  # those of the base


def naive_gains(ours: Sequence[RunRecord], theirs: Sequence[RunRecord]) -> dict[str, float]:
    def means(records: Sequence[RunRecord]) -> dict[str, float]:
        values: dict[str, list[float]] = {}
        for record in records:
            for name, value in naive(record).items():
                values.setdefault(name, []).append(value)
        return {name: sum(each) / len(each) for name, each in values.items()}

    first, second = means(ours), means(theirs)
    return {name: first[name] - second[name] for name in first}


def test_gains_are_differences_of_means_over_seeds_sorted(make_run: MakeRun) -> None:
    heights = ((0.9, 0.6), (0.5, 0.7))
    ours, theirs = (
        [
            make_run(seed=s, accuracy=lambda t, i, h=h: h + 0.1 * (t == 2))
            for s, h in enumerate(each)
        ]
        for each in heights
    )
    found = class_gains(ours, theirs)
    expected = naive_gains(ours, theirs)
    assert dict(found.table.select("name", "gain").iter_rows()) == pytest.approx(expected)
    gains = found.table["gain"].to_list()
    assert gains == sorted(gains, reverse=True)
    assert found.mean == pytest.approx(sum(expected.values()) / len(expected))
    assert found.gaining == sum(gain > 1e-9 for gain in expected.values())


def test_a_start_gains_nothing_over_itself(make_run: MakeRun) -> None:
    found = class_gains([make_run()], [make_run()])
    assert (found.gaining, found.losing) == (0, 0)
    assert found.summary == "mean +0.0: 0 gain, 0 lose, 9 equal"
    assert found.table["name"].to_list() == sorted(found.table["name"].to_list())
