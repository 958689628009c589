import numpy as np
import pytest

from clinit.errors import MachineError
from clinit.headtrain.closed import methods
from clinit.headtrain.closed.methods import SimpleCil, check_memory
from clinit.headtrain.stream.scenario import Scenario, build_scenario
from clinit.headtrain.study.study import Study
from tests.headtrain.closed.made import COUNTS, DIM, queries, rows_of, stream
from tests.headtrain.test_experiment import make_base, make_head, make_new

BASE = make_base(train=(20, 1, 0, 20, 1, 20, 20, 20))


def given(method: str, **settings: float) -> tuple[Scenario, Study]:
    asked = {"method": method, "tasks": 2, "device": "cpu", **settings}
    study = Study.of(asked).resolved()
    return build_scenario(BASE, make_new(), make_head(), study.stream), study


@pytest.mark.parametrize("method", ["ranpac", "klda", "fecam"])
def test_statistics_that_do_not_fit_are_refused(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "free_memory", lambda device: 10**8)
    with pytest.raises(MachineError, match=f"statistics of {method} take") as error:
        check_memory(*given(method), 2048)
    assert "--ranpac-width" in error.value.remedy
    monkeypatch.setattr(methods, "free_memory", lambda device: 10**12)
    check_memory(*given(method), 2048)


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

    head = form.head()
    assert head is not None
    np.testing.assert_allclose(np.linalg.norm(head.rows.weight[seen], axis=1), 1)
    assert (head.rows.bias[seen] == 0).all()
