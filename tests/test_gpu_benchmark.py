import importlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script as a module; it and its parts are forgotten afterwards."""
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module("gpu")
    for path in FOLDER.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.slow
def test_the_benchmark_is_rehearsed_on_the_cpu(tmp_path: Path) -> None:
    script, out = str(FOLDER / "gpu.py"), str(tmp_path)
    command = [sys.executable, script, "--device", "cpu", "--scale", "tiny", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("gpu_")
    text = path.read_text()
    assert "**" not in text  # says which part is not whole
    lines = {part.split("\n")[0]: part.count("\n| ") - 1 for part in text.split("\n## ")[1:]}
    assert lines == {
        **{"Limits": 7, "Workload": -1, "Extraction": 6, "Top blocks": 2},
        **{"Least squares": 2, "Heads": 2, "Protocol": 1},
    }
    assert "| one head | float32 |" in text
    assert "| base rows (numpy) | 72 |" in text
    assert "Least squares" in done.stdout  # says how far it is


def test_without_a_gpu_it_says_what_to_do(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    for cuda, advice in (("13.2", "new enough for CUDA 13.2"), (None, "built without CUDA")):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        with pytest.raises(SystemExit) as caught:
            gpu.main()
        message = str(caught.value)
        assert message.startswith(f"PyTorch {torch.__version__} finds no CUDA device")
        assert advice in message
        assert "--device cpu --scale tiny" in message


def run(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, *measures: Any) -> str:
    """Run the script with these parts; return what it ends with."""
    found = [gpu.Table(f"Part {i}", ("a", "b"), "A note.", each) for i, each in enumerate(measures)]
    monkeypatch.setattr(gpu, "parts", lambda: found)
    command = ["gpu.py", "--device", "cpu", "--scale", "tiny", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*command, "--seconds", "0.5"])
    try:
        gpu.main()
    except SystemExit as end:
        return str(end)
    return ""


def whole(setting: object) -> Any:
    yield ["1", "2"]


def broken(setting: object) -> Any:
    yield ["3", "4"]
    raise RuntimeError("no such kernel")


def endless(setting: object) -> Any:
    yield ["5", "6"]
    try:
        time.sleep(60)
    except Exception as error:  # as code that is measured may do
        raise RuntimeError("taken for an error of its own") from error


def test_a_part_that_fails_spoils_no_other(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    end = run(gpu, monkeypatch, tmp_path, whole, broken, whole)
    assert end == "not everything has worked: Part 1"
    text = next(tmp_path.iterdir()).read_text()
    assert "**Part 1: failed: RuntimeError: no such kernel.**" in text
    assert [line in text for line in ("| 1 | 2 |", "| 3 | 4 |")] == [True, True]
    assert text.count("| 1 | 2 |") == 2


def test_what_does_not_fit_the_time_limit_is_left_out_and_named(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = time.perf_counter()
    assert run(gpu, monkeypatch, tmp_path, whole, endless, whole) == ""
    assert time.perf_counter() - started < 20
    text = next(tmp_path.iterdir()).read_text()
    assert "| 5 | 6 |" in text
    assert "**Part 1: cut off by the time limit.**" in text
    assert "**Part 2: not measured: the time limit was reached before.**" in text


@pytest.mark.parametrize(("code", "said"), [(0, "3 passed in 1s"), (1, "FAILED: 3 passed in 1s")])
def test_the_last_line_of_the_gpu_tests_is_kept(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, code: int, said: str
) -> None:
    commands = []

    class Process(SimpleNamespace):
        stdout = ("...\n", "3 passed in 1s\n", "\n")
        returncode = code

        def __init__(self, command: list[str], **_: object) -> None:
            commands.append(command)

        def __enter__(self) -> "Process":
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(gpu.subprocess, "Popen", Process)
    assert gpu.run_tests(lambda text: None) == said
    assert commands[0][1:5] == ["-m", "pytest", "-m", "gpu"]
