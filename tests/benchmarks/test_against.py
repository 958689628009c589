"""The benchmark of a change: ratios of pairs, and a refusal of what is no checkout."""

import importlib
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "against.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("against")


def test_the_ratio_is_the_median_of_those_of_the_pairs(script: Any) -> None:
    def run(wall_s: float, cpu_s: float) -> Any:
        return script.ProcessCost(wall_s, cpu_s, False)

    pairs = [(run(1, 2), run(2, 2)), (run(10, 4), run(10, 6)), (run(4, 1), run(2, 4))]
    assert script.rows_of({"extract": pairs}) == [
        ["extract", "4.00", "2.00", "2.00", "4.00", "1.000", "1.500", "3"]
    ]


def test_what_is_no_checkout_is_refused(script: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no checkout of clinit at"):
        script.Checkout(tmp_path, tmp_path, tmp_path, script.SMALL)


@pytest.mark.slow
def test_a_command_is_measured_beside_another_checkout(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = str(SCRIPT.parents[1])
    words = ["against.py", here, "--small", "--pairs=1", f"--out={tmp_path}"]
    words += ["--commands", "cache import"]
    monkeypatch.setattr("sys.argv", words)
    script.main()
    (text,) = (path.read_text() for path in tmp_path.glob("against_*.md"))
    names = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert names == ["command", "cache import"]
