from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression as Reference

from clinit.errors import CacheError, HeadError
from clinit.extract.cache.features import FeatureSet
from clinit.headtrain.groups import held_out_rows
from clinit.headtrain.probe import fit as lbfgs
from clinit.headtrain.probe.protocol import probe
from clinit.headtrain.probe.result import Probe
from clinit.headtrain.probe.settings import ProbeConfig
from clinit.headtrain.record.format import finite
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.source import Source
from tests.headtrain.probe.digits import NAMES, digits

SMALL: dict[str, Any] = {"lr": (1e-3, 0.03), "weight_decay": (0.0, 0.5), "epochs": 6}


def part(rows: FeatureSet, chosen: np.ndarray) -> FeatureSet:
    return FeatureSet(rows.features[chosen], rows.labels[chosen], rows.class_names)


def run(source: Source | None = None, **settings: Any) -> Probe:
    return probe(source or digits(), ProbeConfig(**{**SMALL, "device": "cpu", **settings}))


def by_c(source: Source | None = None, **settings: Any) -> Probe:
    return probe(source or digits(), ProbeConfig(by="lbfgs", device="cpu", **settings))


@pytest.fixture(scope="module")
def probed() -> Probe:
    return run()


def test_the_chosen_setting_is_that_of_a_loop_over_the_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lbfgs, "GRADIENT", 1e-7)
    train, val = digits().train, digits().val
    held = held_out_rows(
        train.labels, np.arange(len(train.labels)), 0.2, generator(0, Draw.HELD_OUT)
    )
    values = (0.001, 0.03, 1.0, 30.0)

    def reference(c: float, rows: np.ndarray) -> Any:
        model = Reference(C=c, max_iter=5000, tol=1e-7)
        return model.fit(train.features[rows].astype(float), train.labels[rows])

    scores = [
        100 * reference(c, ~held).score(train.features[held], train.labels[held]) for c in values
    ]
    found = by_c(c=values[::-1])
    assert [point.top1 for point in found.grid] == pytest.approx(scores, abs=1e-9)
    best = values[int(np.argmax(scores))]  # the first one, hence the smallest
    assert found.chosen == {"c": best}
    last = reference(best, np.ones(len(held), dtype=bool))
    assert found.val is not None
    assert found.val.top1 == pytest.approx(100 * last.score(val.features, val.labels))


def test_the_content_is_plain_values(probed: Probe) -> None:
    content = json.loads(json.dumps(finite(probed.content()), allow_nan=False))
    assert content["top1"] == pytest.approx(probed.top1)
    assert content["measured_on"] == "val"
    assert len(content["grid"]) == 4
    assert content["chosen"] == dict(probed.chosen)
    assert content["config"]["epochs"] == 6


def test_without_validation_rows_the_number_is_that_of_the_held_out_ones() -> None:
    source = replace(digits(), val=part(digits().val, np.zeros(200, dtype=bool)))
    found = run(source)
    assert found.val is None
    assert found.top1 == found.held_out_top1 == max(point.top1 for point in found.grid)
    assert found.content()["measured_on"] == "held-out training rows"
    assert any("an upper estimate" in note for note in found.notes)
    single = run(source, lr=(0.01,), weight_decay=(0.0,))
    assert single.top1 is None
    assert any("nothing is measured" in note for note in single.notes)


def test_classes_without_a_training_row_are_named_and_have_no_head_row() -> None:
    without = digits().train.labels != 4
    found = run(replace(digits(), train=part(digits().train, without)))
    assert found.classes == 9
    assert found.head.class_names == tuple(name for name in NAMES if name != "4")
    assert any("1 classes have no training image (4): the head has" in n for n in found.notes)
    assert found.val is not None
    assert found.val.rows == 200


def test_single_images_alone_leave_no_choice_but_a_single_setting_works() -> None:
    firsts = np.unique(digits().train.labels, return_index=True)[1]
    source = replace(digits(), train=part(digits().train, np.sort(firsts)))
    with pytest.raises(CacheError, match="nothing can be held out to choose settings by") as error:
        run(source)
    assert "--lr 1e-3 --weight-decay 0" in error.value.remedy
    assert (run(source, lr=(0.01,), weight_decay=(0.0,)).top1 or 0) > 30


def test_heads_that_diverge_are_not_chosen_and_if_all_do_it_is_an_error() -> None:
    found = run(lr=(0.03, 1e37), weight_decay=(1e3,))
    assert found.chosen["lr"] == 0.03
    assert any("1 of 2 heads of the grid have diverged" in note for note in found.notes)
    with pytest.raises(HeadError, match="every head of the grid has diverged"):
        run(lr=(1e37, 1e38), weight_decay=(1e3,))
    with pytest.raises(HeadError, match="the probe has diverged: its loss is"):
        run(lr=(1e37,), weight_decay=(1e3,))


def test_the_edge_of_the_grid_is_told_but_not_that_of_a_single_value() -> None:
    found = run(lr=(1e-3, 0.03), weight_decay=(0.5,))  # of two values each is at an edge
    (told,) = (note for note in found.notes if "that was tried" in note)
    assert f"--lr, {found.chosen['lr']:g}" in told


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"by": "lbfgs", "lr": (0.1,)}, "lr goes with adamw alone, and by is lbfgs"),
        ({"c": (0.1,)}, "c goes with lbfgs alone, and by is adamw"),
        ({"by": "lbfgs", "epochs": 3}, "epochs goes with adamw alone"),
        ({"lr": (0.1, 0.1)}, "lr names a value twice"),
        ({"lr": ()}, "lr takes a list"),
        ({"lr": (0.0,)}, "lr takes a list"),
        ({"weight_decay": (-1.0,)}, "weight_decay takes a list"),
        ({"held_out": 0.0}, "held_out takes a number"),
        ({"held_out": 0.95}, "held_out takes a number"),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProbeConfig(**wrong)
