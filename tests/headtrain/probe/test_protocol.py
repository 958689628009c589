import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression as Reference
from sklearn.metrics import log_loss

from clinit.extract.cache.features import FeatureSet
from clinit.headtrain.heads.groups import held_out_rows
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.repeats import groups_of
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.probe import fit
from clinit.headtrain.probe.protocol import Probe, measure, probe
from clinit.headtrain.probe.settings import ProbeConfig
from clinit.headtrain.protocol.record.format import finite
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.train.heads import LabelledRows
from tests.headtrain.probe.digits import NAMES, digits

CLASSES, DIM = 8, 3
RNG = np.random.default_rng(0)
HEAD = Rows(RNG.normal(size=(CLASSES, DIM)), RNG.normal(size=CLASSES))
FEATURES = RNG.normal(size=(200, DIM)).astype(np.float16)
LABELS = RNG.integers(0, CLASSES, size=200)
ALL = np.arange(CLASSES)
LACKING = np.array([0, 1, -1, 2, 3, -1, 4, 5])


def part(rows: FeatureSet, chosen: np.ndarray) -> FeatureSet:
    return FeatureSet(rows.features[chosen], rows.labels[chosen], rows.class_names)


def run(source: Source | None = None, **settings: Any) -> Probe:
    return probe(source or digits(), ProbeConfig(**{"c": (0.01, 1.0), "device": "cpu", **settings}))


@pytest.mark.parametrize(
    ("head", "labels", "row_of_class"),
    [
        (HEAD, LABELS, ALL),
        (Rows(np.zeros((CLASSES, DIM)), np.zeros(CLASSES)), LABELS, ALL),  # the first of equals
        (Rows(HEAD.weight[:6], HEAD.bias[:6]), LABELS, LACKING),
        (Rows(HEAD.weight[:5], HEAD.bias[:5]), LABELS % 2, np.arange(5)),  # some without a row
    ],
)
def test_accuracies_are_those_of_counting_row_by_row(
    head: Rows, labels: np.ndarray, row_of_class: np.ndarray
) -> None:
    found = measure(
        head, LabelledRows.on(torch.device("cpu"), FEATURES, labels), row_of_class.astype(np.int64)
    )
    places = np.full(200, 99)
    for row, label in enumerate(row_of_class[labels]):
        if label >= 0:
            logits = head.weight @ FEATURES[row].astype(np.float64) + head.bias
            places[row] = sorted(range(len(logits)), key=lambda c: -logits[c]).index(label)
    assert found.rows == 200
    assert found.top1 == pytest.approx(100 * (places == 0).mean())
    if len(head.bias) > 5:
        assert found.top5 == pytest.approx(100 * (places < 5).mean())
    else:
        assert found.top5 is None
    by_class = [(places[labels == c] == 0).mean() for c in np.unique(labels)]
    assert found.per_class == pytest.approx(100 * np.mean(by_class))


def test_the_chosen_setting_is_that_of_a_loop_over_the_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fit, "GRADIENT", 1e-7)
    train, val = digits().train, digits().val
    held = held_out_rows(train.labels, groups_of(train), 0.2, generator(0, Draw.HELD_OUT))
    values = (0.001, 0.03, 1.0, 30.0)

    def reference(c: float, rows: np.ndarray) -> Any:
        model = Reference(C=c, max_iter=5000, tol=1e-7)
        return model.fit(train.features[rows].astype(float), train.labels[rows])

    models = [reference(c, ~held) for c in values]
    aside = train.features[held], train.labels[held]
    losses = [log_loss(aside[1], model.predict_proba(aside[0])) for model in models]
    found = probe(digits(), ProbeConfig(standardise=False, device="cpu", c=values[::-1]))
    scores = [100 * model.score(*aside) for model in models]
    assert [point.top1 for point in found.grid] == pytest.approx(scores, abs=1e-9)
    best = values[int(np.argmin(losses))]
    assert found.chosen == {"c": best}
    last = reference(best, np.ones(len(held), dtype=bool))
    assert found.val.top1 == pytest.approx(100 * last.score(val.features, val.labels))


def test_the_content_is_plain_values_and_names_the_edge_of_the_grid() -> None:
    found = run()
    (told,) = (note for note in found.notes if "at the end" in note)
    assert f"--c, {found.chosen['c']:g}" in told
    content = json.loads(json.dumps(finite(found.content()), allow_nan=False))
    assert content["top1"] == pytest.approx(found.top1)
    assert content["measured_on"] == "val"
    assert [point["c"] for point in content["grid"]] == [0.01, 1.0]
    assert content["chosen"] == dict(found.chosen)
    assert content["config"]["max_iterations"] == 1000


def test_without_validation_rows_the_number_is_that_of_the_held_out_ones() -> None:
    source = replace(digits(), val=part(digits().val, np.zeros(200, dtype=bool)))
    found = run(source)
    assert found.val is None
    best = min(found.grid, key=lambda point: point.held_out_loss)
    assert found.top1 == found.held_out_top1 == best.top1
    assert found.content()["measured_on"] == "held-out training rows"
    assert run(source, c=(0.01,)).top1 is None


def test_classes_without_a_training_row_have_no_head_row() -> None:
    found = run(replace(digits(), train=part(digits().train, digits().train.labels != 4)))
    assert found.classes == 9
    assert found.head.class_names == tuple(name for name in NAMES if name != "4")
    assert found.val.rows == 200


@pytest.mark.parametrize(
    ("wrong", "fact"),
    [
        ({"c": ()}, "c takes a list of numbers"),
        ({"c": (0.0,)}, "c takes a list"),
        ({"held_out": 0.95}, "held_out takes a number"),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, Any], fact: str) -> None:
    with pytest.raises(ValueError, match=fact):
        ProbeConfig(**wrong)
