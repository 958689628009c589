"""What closed forms share: evaluation, and arrays that live on a device, as those of CuPy do."""

from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
import torch

from clinit.errors import MachineError
from clinit.headtrain.heads.array import StreamedRows, to_numpy
from clinit.headtrain.heads.closed.methods import ClosedForm, SimpleCil
from clinit.headtrain.protocol import methods as module
from clinit.headtrain.protocol.methods import FormBank, check_memory, closed_form
from clinit.headtrain.protocol.stream.scenario import build_scenario
from clinit.headtrain.protocol.study.parts import Training
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.train.evaluate import evaluate
from clinit.headtrain.protocol.train.heads import LabelledRows
from tests.headtrain.heads.closed.made import COUNTS, DIM, queries, rows_of, stream
from tests.headtrain.protocol.test_experiment import make_base, make_head, make_new

CLASSES = 6
LABELS = np.sort(np.random.default_rng(1).integers(0, CLASSES, size=500))
ROWS = np.arange(500, dtype=np.float32)[:, None]


class Given(ClosedForm):
    """Scores that were drawn, with equal ones among them: the feature of a row is its number."""

    block_values = 3
    table = np.random.default_rng(0).integers(0, 9, size=(500, CLASSES)).astype(np.float32)

    def __init__(self) -> None:
        self.most = 0

    def scores(self, features: Any) -> Any:
        self.most = max(self.most, len(features))
        return self.table[features[:, 0].astype(int)]


@pytest.mark.parametrize("values", [1, 2**23])
def test_counts_and_mistakes_are_those_of_every_row_looked_at_alone(
    values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clinit.headtrain.protocol.train.evaluate.BLOCK_VALUES", values)
    form, device = Given(), torch.device("cpu")
    bank = FormBank(form, CLASSES, [Training()], device)
    rows = LabelledRows.on(device, ROWS, LABELS)
    found = evaluate(bank, rows, (4, 6, 9), list_mistakes=True)  # the last task is still to come
    assert form.most == (256 if values == 1 else 500)
    best, first = form.table.argmax(1), np.where(LABELS < 4, 0, 4)
    in_task = np.where(LABELS < 4, form.table[:, :4].argmax(1), form.table[:, 4:].argmax(1)) + first
    for answers, counted in ((best, found.correct), (in_task, found.correct_in_task)):
        right = LABELS[answers == LABELS]
        assert counted.tolist() == [np.bincount(right, minlength=CLASSES).tolist()]
    numbers = np.arange(500) - np.searchsorted(LABELS, LABELS)
    wrong = np.stack([LABELS, numbers, best])[:, best != LABELS]
    assert found.mistakes[0].tolist() == wrong.tolist()
    assert found.mistakes[0].dtype == np.int32


DEVICE = strict.Device("device1")
SETTINGS: list[dict[str, Any]] = [
    *({"method": method} for method in ("slda", "simplecil")),
    {"method": "ranpac", "ranpac_width": 5},
    {"method": "ranpac", "ranpac_width": 40, "ranpac_lam": 1.0},
    {"method": "ranpac", "ranpac_width": 40},
]


def on_device(values: np.ndarray) -> Any:
    return strict.asarray(values, device=DEVICE)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("settings", SETTINGS)
def test_scores_are_those_of_numpy(settings: dict[str, Any], streamed: bool) -> None:
    study = Study.of({**settings, "device": "cpu"}).resolved()
    near, far = (closed_form(study, zeros) for zeros in (np.zeros(DIM), on_device(np.zeros(DIM))))
    expected = stream(near)
    place = (lambda rows: StreamedRows(rows, on_device)) if streamed else on_device
    assert [each.lam for each in stream(far, place=place)] == [each.lam for each in expected]
    scores = far.scores(on_device(queries()))
    assert scores.device == DEVICE
    np.testing.assert_allclose(to_numpy(scores), near.scores(queries()), rtol=5e-3, atol=5e-3)


def test_statistics_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study.of({"method": "ranpac", "tasks": 2, "device": "cpu"}).resolved()
    scenario = build_scenario(make_base(), make_new(), make_head(), study.stream)
    monkeypatch.setattr(module, "free_memory", lambda device: 10**8)
    with pytest.raises(MachineError, match="statistics of ranpac take") as error:
        check_memory(scenario, study)
    assert "--ranpac-width" in error.value.remedy
    monkeypatch.setattr(module, "free_memory", lambda device: 10**12)
    check_memory(scenario, study)


def test_the_class_of_the_largest_cosine_with_its_mean_wins() -> None:
    form = SimpleCil(np.zeros(DIM))
    stream(form)
    features, labels = rows_of(0, len(COUNTS))
    asked = queries().astype(float)
    cosines = np.full((len(asked), len(COUNTS)), -2.0)
    for label in np.unique(labels):
        mean = features[labels == label].astype(float).mean(0)
        lengths = np.linalg.norm(asked, axis=1) * np.linalg.norm(mean)
        cosines[:, label] = asked @ mean / lengths
    found = form.scores(queries())
    assert found.argmax(1).tolist() == cosines.argmax(1).tolist()
    seen = np.array(COUNTS) > 0
    scaled = found[:, seen] / np.linalg.norm(asked, axis=1)[:, None]
    np.testing.assert_allclose(scaled, cosines[:, seen], atol=1e-5)

    head = form.rows
    np.testing.assert_allclose(np.linalg.norm(head.weight[seen], axis=1), 1)
    assert (head.bias[seen] == 0).all()
