"""The benchmarks run, at their smallest sizes, and their tables say what was measured."""

import importlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Import a script as a module; it and its parts are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = {path.stem: sys.modules.pop(path.stem, None) for path in FOLDER.glob("*.py")}
    yield importlib.import_module
    for name, module in before.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


def test_ratios_of_extractions_are_those_of_one_round(script: Callable[[str], Any]) -> None:
    extract = script("extract")

    def passes(*seconds: tuple[float, float]) -> list[Any]:
        return [extract.Pass(100, wall_s, cpu_s) for wall_s, cpu_s in seconds]

    found = {
        "clinit": passes((1, 2), (2, 2), (4, 4)),
        "decoding alone": passes((2, 4), (2, 6), (4, 4)),
        "model alone": passes((6, 1), (6, 1), (6, 1)),
    }
    assert extract.work_bound(found) == pytest.approx(12.5)
    assert extract.rows_of(found)[:2] == [
        ["clinit", "50.0", "20.0", "1.00 (1.00-1.00)", "1.00 (1.00-1.00)"],
        ["decoding alone", "50.0", "40.0", "1.00 (1.00-2.00)", "2.00 (1.00-3.00)"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "headings"),
    [
        (
            "extract.py decode --images=4 --rounds=1 --first=1 --contenders clinit",
            {"contender", "clinit"},
        ),
        (
            "threads.py --small --repeats=1 --busy=1 --commands train-head --settings spin-1000",
            {"command", "train-head"},
        ),
        (
            "heads.py --iterations=2 --block=2 --banks 1 --per-class=4 --no-avalanche"
            " --no-protocol --threads=1",
            {"contender", "clinit, one head, float32", "PyTorch, DataLoader"},
        ),
        ("gpu.py --device cpu --scale tiny", {"one head", "base rows (numpy)"}),
    ],
)
def test_a_benchmark_writes_a_dated_result(words: str, headings: set[str], tmp_path: Path) -> None:
    name, *arguments = words.split()
    command = [sys.executable, str(FOLDER / name), *arguments, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.iterdir()
    assert re.search(r"_\d{4}-\d\d-\d\d\.md$", path.name)
    text = path.read_text(encoding="utf-8")
    assert "**" not in text  # says which part is not whole
    first = {line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")}
    assert headings <= first


def test_without_a_gpu_its_benchmark_says_what_to_do(
    script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(SystemExit, match=r"finds no CUDA device.*(?s:.)*--device cpu"):
        script("gpu").main()


def whole(setting: object) -> Any:
    yield ["1", "2"]


def broken(setting: object) -> Any:
    yield ["3", "4"]
    raise RuntimeError("no such kernel")


def endless(setting: object) -> Any:
    yield ["5", "6"]
    time.sleep(60)


def test_a_part_that_fails_or_takes_too_long_spoils_no_other(
    script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpu: ModuleType = script("gpu")
    measures = (whole, broken, endless, whole)
    found = [gpu.Table(f"Part {i}", ("a", "b"), "A note.", each) for i, each in enumerate(measures)]
    monkeypatch.setattr(gpu, "parts", lambda: found)
    words = ["gpu.py", "--device", "cpu", "--scale", "tiny", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*words, "--seconds", "0.5"])
    with pytest.raises(SystemExit, match="not everything has worked: Part 1"):
        gpu.main()
    text = next(tmp_path.iterdir()).read_text()
    assert all(line in text for line in ("| 1 | 2 |", "| 3 | 4 |", "| 5 | 6 |"))
    assert "**Part 1: failed: RuntimeError: no such kernel.**" in text
    assert "**Part 2: cut off by the time limit.**" in text
    assert "**Part 3: not measured: the time limit was reached before.**" in text
