from __future__ import annotations

import numpy as np

from clinit.headtrain.closed.methods import SimpleCil
from tests.headtrain.closed.made import COUNTS, DIM, queries, rows_of, stream


def test_the_class_of_the_largest_cosine_with_its_mean_wins() -> None:
    form = SimpleCil(np.zeros(DIM))
    stream(form)
    features, labels = rows_of(0, len(COUNTS))
    asked = queries().astype(float)
    cosines = np.full((len(asked), len(COUNTS)), -2.0)
    for label in np.unique(labels):
        mean = features[labels == label].astype(float).mean(0)
        for number, query in enumerate(asked):
            product = query @ mean
            cosines[number, label] = product / np.linalg.norm(query) / np.linalg.norm(mean)
    found = form.scores(queries())
    assert found.argmax(1).tolist() == cosines.argmax(1).tolist()
    seen = np.array(COUNTS) > 0
    scaled = found[:, seen] / np.linalg.norm(asked, axis=1)[:, None]
    np.testing.assert_allclose(scaled, cosines[:, seen], atol=1e-5)


def test_its_head_is_linear_with_unit_rows_and_no_bias() -> None:
    form = SimpleCil(np.zeros(DIM))
    stream(form)
    head, seen = form.head(), np.array(COUNTS) > 0
    assert head.feature_map is None
    np.testing.assert_allclose(np.linalg.norm(head.rows.weight[seen], axis=1), 1)
    assert (head.rows.bias[seen] == 0).all()
