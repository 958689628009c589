from __future__ import annotations

import pytest

from clinit.errors import MachineError
from clinit.headtrain.closed import methods
from clinit.headtrain.closed.methods import check_memory, needed
from clinit.headtrain.stream.scenario import Scenario, build_scenario
from clinit.headtrain.study.study import Study
from tests.headtrain.test_experiment import make_base, make_head, make_new

BASE = make_base(train=(20, 1, 0, 20, 1, 20, 20, 20))


def given(method: str, **settings: float) -> tuple[Scenario, Study]:
    asked = {"method": method, "tasks": 2, "device": "cpu", **settings}
    study = Study.of(asked).resolved()
    return build_scenario(BASE, make_new(), make_head(), study.stream), study


@pytest.mark.parametrize(
    ("method", "fact", "remedy"),
    [
        ("ranpac", "of 10,000 random features take 4", "a smaller --ranpac-width"),
        ("klda", "of 1 times 5,000 random features", "a smaller --klda-width or fewer"),
        ("fecam", "of 12 classes, 2,048 x 2,048 each,", "--method slda"),
    ],
)
def test_statistics_that_do_not_fit_are_refused(
    method: str, fact: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "free_memory", lambda device: 10**8)
    with pytest.raises(MachineError, match=fact) as error:
        check_memory(*given(method), 2048)
    assert remedy in error.value.remedy
    monkeypatch.setattr(methods, "free_memory", lambda device: 10**12)
    check_memory(*given(method), 2048)


def test_what_is_needed_is_counted_in_matrices() -> None:
    chosen, fixed = (
        needed(*given("ranpac", ranpac_width=50, **lam), 24)[0]
        for lam in (dict[str, float](), {"ranpac_lam": 1.0})
    )
    assert chosen - fixed == 8 * 6 * 50**2  # a task has more rows than random features
    assert needed(*given("fecam"), 24)[0] == 4 * 12 * 24**2 + 8 * 5 * 24**2
    assert needed(*given("slda"), 24)[0] == 0
