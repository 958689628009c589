from __future__ import annotations

from typing import Any

import pytest

from clinit.headtrain.stream.task_plan import OLD_ROWS
from clinit.headtrain.study import TOP_METHODS, Study
from clinit.headtrain.top.experiment import top_method
from clinit.headtrain.top.method import TopMethod


def method_of(**settings: Any) -> TopMethod:
    return top_method(Study.of(settings, top=True).resolved())


@pytest.mark.parametrize("name", TOP_METHODS)
def test_each_name_gives_a_method_that_reads_rows_of_a_method_of_heads(name: str) -> None:
    method = method_of(method=name, loss="sqen", seed=3)
    assert isinstance(method, TopMethod)
    assert OLD_ROWS[method.data_method] == OLD_ROWS[name]


def test_settings_reach_their_method() -> None:
    assert method_of(method="ewc", ewc_samples=5).base_sample == 5
    assert method_of(method="derpp", derpp_teacher="stored").draws == 2
