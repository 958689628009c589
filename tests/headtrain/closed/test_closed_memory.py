from __future__ import annotations

import numpy as np
import pytest

from clinit.errors import MachineError
from clinit.headtrain.closed import methods as memory
from clinit.headtrain.closed.methods import memory_notes, need_of
from clinit.headtrain.stream.scenario import Scenario, build_scenario
from clinit.headtrain.study import CLOSED_METHODS, Study
from tests.headtrain.test_experiment import make_base, make_head, make_new


def asked(method: str, **settings: float) -> Study:
    return Study.of({"method": method, "tasks": 2, "device": "cpu", **settings}).resolved()


def scenario(study: Study) -> Scenario:
    return build_scenario(make_base(), make_new(), make_head(), study.stream)


def notes(study: Study, dim: int = 24) -> list[str]:
    return memory_notes(scenario(study), study, dim)


@pytest.mark.parametrize("method", CLOSED_METHODS)
def test_small_statistics_are_not_worth_a_note(method: str) -> None:
    small = {"ranpac": {"ranpac_width": 100}, "klda": {"klda_width": 100}}
    assert notes(asked(method, **small.get(method, {}))) == []


def test_large_ones_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 10**12)
    (said,) = notes(asked("ranpac"))
    assert said == "sums and solves of 10,000 random features take 4.00 GB of memory"
    (said,) = notes(asked("klda", klda_members=3))
    assert said.startswith("sums and solves of 3 times 5,000 random features take 1.6")
    (said,) = notes(asked("fecam"), dim=2048)
    assert said.startswith("the matrices of 15 classes, 2,048 x 2,048 each, take 0.42 GB")


@pytest.mark.parametrize(
    ("method", "remedy"),
    [
        ("ranpac", "Give a smaller --ranpac-width."),
        ("klda", "Give a smaller --klda-width or fewer --klda-members."),
        ("fecam", "Take --method slda, which has one covariance for all classes"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_lower(
    method: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 10**8)
    with pytest.raises(MachineError, match=r"take .* GB of memory, but 0\.10 GB are free") as error:
        notes(asked(method), dim=4096)
    assert error.value.remedy.startswith(remedy)


def test_tasks_of_more_rows_than_random_features_take_more() -> None:
    study = asked("ranpac", ranpac_width=50)
    given = asked("ranpac", ranpac_width=50, ranpac_lam=1.0)
    needs = [need_of(scenario(each), each, 24) for each in (study, given)]
    assert needs[0] is not None
    assert needs[1] is not None
    assert needs[0].size_bytes - needs[1].size_bytes == 8 * 6 * 50**2


def test_only_classes_with_a_covariance_count() -> None:
    study = asked("fecam")
    base = make_base(train=(20, 1, 0, 20, 1, 20, 20, 20))
    found = need_of(build_scenario(base, make_new(), make_head(), study.stream), study, 24)
    assert found is not None
    assert found.what.startswith("the matrices of 12 classes")
    assert np.isclose(found.size_bytes, 4 * 12 * 24**2 + 8 * 5 * 24**2)
