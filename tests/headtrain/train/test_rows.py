"""What a step gathers from, where the features lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clinit.headtrain.train.rows import LabelledRows, ResidentFeed, StreamedFeed, feed_of

CPU = torch.device("cpu")
DIM, CLASSES, ROWS, BATCH, STEPS = 10, 6, 50, 8, 12


def make_rows() -> LabelledRows:
    random = np.random.default_rng(0)
    features = random.normal(size=(ROWS, DIM)).astype(np.float16)
    return LabelledRows.on(CPU, features, random.integers(CLASSES, size=ROWS))


def make_batches() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(ROWS, size=(STEPS, BATCH)))


def test_the_feed_follows_from_where_the_features_are(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = make_batches()
    assert isinstance(feed_of(make_rows(), batches, 5), ResidentFeed)
    monkeypatch.setattr(LabelledRows, "is_resident", property(lambda rows: False))
    assert isinstance(feed_of(make_rows(), batches, 5), StreamedFeed)


def test_rows_are_copied_widened_and_cut_as_they_are_stored() -> None:
    rows = make_rows()
    assert len(rows) == ROWS
    assert rows.is_resident
    taken = rows.take(torch.tensor([7, 3, 3]))
    assert torch.equal(taken.features, rows.features[[7, 3, 3]])
    assert torch.equal(taken.labels, rows.labels[[7, 3, 3]])
    assert taken.features.dtype == torch.float16
    wide = rows.widened(slice(4, 9))
    assert wide.dtype == torch.float32
    assert torch.equal(wide, rows.features[4:9].float())
    first = rows.first(5)
    assert (len(first), first.features.data_ptr()) == (5, rows.features.data_ptr())


def test_a_streamed_feed_gives_its_memory_to_the_steps_that_follow() -> None:
    rows, batches = make_rows(), make_batches()
    feed = StreamedFeed(rows, batches, most_steps=5)
    place = feed.features.data_ptr()
    for start, stop in ((0, 5), (5, 6), (6, 11), (11, STEPS)):
        feed.prepare(start, stop)
        for step in range(start, stop):
            assert torch.equal(feed.features[feed.batches[step]], rows.features[batches[step]])
            assert torch.equal(feed.labels[feed.batches[step]], rows.labels[batches[step]])
    assert feed.features.data_ptr() == place
