from __future__ import annotations

import pytest
from rich.cells import cell_len

from clinit.analysis.figures.style import fitted, shortened


@pytest.mark.parametrize(
    "name", ["", "kitchen", "a" * 10_000, "写" * 50, "a写b", "\u05d0\u05d1" * 9]
)
@pytest.mark.parametrize("width", [1, 2, 7, 30])
def test_a_name_never_takes_more_than_its_columns(name: str, width: int) -> None:
    short = shortened(name, width)
    assert cell_len(short) <= width
    assert short == name if cell_len(name) <= width else short.endswith("…")
    assert cell_len(fitted(name, width)) == width
    assert cell_len(fitted(name, width, right=True)) == width
    assert fitted(name, width, right=True).endswith(short)
