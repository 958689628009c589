from __future__ import annotations

import pytest

from clinit.headtrain.stream.old_rows import old_rows_of
from clinit.headtrain.top.methods import TOP_METHODS, EwcConfig, TopMethod, top_method


@pytest.mark.parametrize("name", TOP_METHODS)
def test_each_name_gives_a_method_that_reads_rows_of_a_method_of_heads(name: str) -> None:
    method = top_method(name, loss_name="sqen", seed=3)
    assert isinstance(method, TopMethod)
    old_rows_of(method.data_method)


def test_settings_reach_their_method() -> None:
    assert top_method("ewc", ewc=EwcConfig(samples=5)).base_sample == 5


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="method is 'si', expected one of"):
        top_method("si")


@pytest.mark.parametrize("name", TOP_METHODS)
def test_an_unknown_loss_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="loss is 'hinge', expected one of"):
        top_method(name, loss_name="hinge")
