import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clinit.headtrain.groups import draw_per_class, held_out_rows, water_level

counts_of_classes = st.lists(st.integers(0, 12), min_size=1, max_size=8)


def labels_of(counts: list[int]) -> np.ndarray:
    return np.random.default_rng(7).permutation(np.repeat(np.arange(len(counts)), counts))


def naive_draw(labels: np.ndarray, quotas: list[int], seed: int) -> list[bool]:
    """Go through the rows in shuffled order, and take each whose class still wants one."""
    left, taken = list(quotas), [False] * len(labels)
    for row in np.random.default_rng(seed).permutation(len(labels)):
        if left[labels[row]]:
            left[labels[row]] -= 1
            taken[row] = True
    return taken


@given(counts=counts_of_classes, seed=st.integers(0, 3), data=st.data())
def test_a_draw_takes_the_first_rows_of_each_class_in_shuffled_order(
    counts: list[int], seed: int, data: st.DataObject
) -> None:
    quotas = [data.draw(st.integers(0, 14)) for _ in counts]
    labels = labels_of(counts)
    drawn = draw_per_class(labels, np.array(quotas), seed)
    assert drawn.tolist() == naive_draw(labels, quotas, seed)
    wanted = np.minimum(counts, quotas)
    assert np.bincount(labels[drawn], minlength=len(counts)).tolist() == wanted.tolist()


@given(counts=counts_of_classes, size=st.integers(0, 100))
def test_the_water_level_is_the_highest_that_does_not_pass_the_size(
    counts: list[int], size: int
) -> None:
    naive = [n for n in range(max(counts) + 1) if sum(min(n, c) for c in counts) <= size]
    assert water_level(np.array(counts), size) == naive[-1]


@pytest.mark.parametrize(("rows", "held"), [(1, 0), (2, 1), (3, 1), (10, 2), (100, 20)])
def test_each_class_gives_its_share_and_keeps_a_row(rows: int, held: int) -> None:
    labels = np.repeat(np.arange(3), rows)
    chosen = held_out_rows(labels, np.arange(len(labels)), 0.2, np.random.default_rng(0))
    random = np.random.default_rng(0)  # as they were drawn before there were groups
    drawn = [random.permutation(np.flatnonzero(labels == label))[:held] for label in range(3)]
    assert np.flatnonzero(chosen).tolist() == sorted(np.concatenate(drawn).tolist())
    assert np.bincount(labels[chosen], minlength=3).tolist() == [held] * 3
