"""Types are checked as the code runs: of arrays with their shapes, and of all else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float, TypeCheckError

from clinit.extract.dataset.decode import decode
from clinit.headtrain.train.losses import pick
from tests.type_checks import CALLS, CHECKED, first_calls, names_arrays


@pytest.fixture
def checked(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--jaxtyping-packages"):
        pytest.skip("types are not checked: `make test-all` does")


Alias = tuple[Float[np.ndarray, " rows"], int]


def of_numbers(number: int, text: str) -> list[float]:
    return [number * len(text)]


def of_an_array(rows: Float[np.ndarray, "rows dim"]) -> int:
    return len(rows)


def of_an_alias(rows: Alias) -> int:
    return rows[1]


def of_a_later_name(rows: Later) -> int:  # type: ignore[name-defined]  # noqa: F821
    return int(rows)


def test_functions_that_name_arrays_are_told_from_others() -> None:
    named = {each.__name__: names_arrays(each) for each in FUNCTIONS}
    assert named == {
        "of_numbers": False,
        "of_an_array": True,
        "of_an_alias": True,
        "of_a_later_name": True,
    }


FUNCTIONS = (of_numbers, of_an_array, of_an_alias, of_a_later_name)


@pytest.mark.usefixtures("checked")
def test_a_wrong_type_is_refused() -> None:
    with pytest.raises(BeartypeCallHintViolation, match="content"):
        decode("text")  # type: ignore[arg-type]


@pytest.mark.usefixtures("checked")
def test_arrays_that_differ_in_length_are_refused() -> None:
    pick(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(TypeCheckError, match="pick"):
        pick(torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64))


def test_the_first_calls_of_a_test_are_checked() -> None:
    def plain() -> str:
        return "plain"

    called = first_calls(plain, lambda: "checked")
    assert [called() for _ in range(CALLS + 2)] == ["checked"] * CALLS + ["plain"] * 2
    CHECKED.clear()  # as before the next test
    assert called() == "checked"
