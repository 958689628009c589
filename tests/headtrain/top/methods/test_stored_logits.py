from __future__ import annotations

import numpy as np
import pytest
import torch

from clinit.headtrain.top.derpp import StoredLogits


def stored() -> StoredLogits:
    """Rows 5, 2, 9 with two logits, rows 7, 1 with three; each logit is row + column / 10."""
    found = StoredLogits()
    for rows, width in (([5, 2, 9], 2), ([7, 1], 3)):
        values = np.array(rows)[:, None] + np.arange(width) / 10
        found.add(np.array(rows), torch.from_numpy(values).float())
    return found


def test_rows_are_found_with_the_logits_of_their_own_width() -> None:
    rows = np.array([1, 9, 7, 2, 9])
    found = stored().find(rows)
    widths = {}
    for places, logits in found:
        for place, values in zip(places.tolist(), logits, strict=True):
            widths[place] = len(values)
            expected = torch.from_numpy(rows[place] + np.arange(len(values)) / 10).float()
            torch.testing.assert_close(values, expected)
    assert widths == {0: 3, 1: 2, 2: 3, 3: 2, 4: 2}


def test_rows_that_are_not_kept_are_forgotten() -> None:
    found = stored()
    found.keep(np.array([2, 5]))
    assert sorted(found.rows.tolist()) == [2, 5]
    assert len(found.state()) == 2, "a block without rows is gone"
    with pytest.raises(ValueError, match="1 rows have no stored logits, for example row 7"):
        found.find(np.array([5, 7]))


def test_a_state_is_the_whole_memory() -> None:
    again = StoredLogits()
    again.restore(stored().state())
    for (places, logits), (expected_places, expected) in zip(
        again.find(np.array([7, 2])), stored().find(np.array([7, 2])), strict=True
    ):
        assert torch.equal(places, expected_places)
        assert torch.equal(logits, expected)


def test_rows_that_are_not_there_cannot_be_kept() -> None:
    with pytest.raises(ValueError, match="2 rows have no stored logits, for example row 3"):
        stored().keep(np.array([2, 3, 4]))


def test_a_row_is_stored_once() -> None:
    with pytest.raises(ValueError, match="1 rows have logits already, for example row 9"):
        stored().add(np.array([9, 10]), torch.zeros(2, 3))


def test_nothing_is_found_in_nothing() -> None:
    empty = StoredLogits()
    empty.add(np.empty(0, dtype=np.int64), torch.empty(0, 3))
    empty.keep(np.empty(0, dtype=np.int64))
    assert empty.find(np.empty(0, dtype=np.int64)) == []
    assert empty.state() == {}
