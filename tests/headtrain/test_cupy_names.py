"""Array code calls what CuPy has, by name and by keyword: CuPy imports without a GPU.

The functions run on NumPy through a namespace that writes down each call. A process with CuPy (in
the folder that CLINIT_CUPY names, so that no other test finds it) binds the calls to the signatures
of CuPy's functions, and those of `cupy`, `torch.cuda` and the decoder that the source writes out.
"""

import ast
import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

Call = tuple[str, int, list[str]]
"""Dotted name, number of positional arguments, keywords."""
LINEAR = {"torch.float64", "float64", "float32"}


class Recording:
    """A namespace whose functions are written down when they are called."""

    def __init__(self, space: Any, calls: list[Call], prefix: str = "") -> None:
        self._space, self._calls, self._prefix = space, calls, prefix
        self.__name__ = space.__name__

    def __getattr__(self, name: str) -> Any:
        found, dotted = getattr(self._space, name), f"{self._prefix}{name}"
        if inspect.ismodule(found):
            return Recording(found, self._calls, f"{dotted}.")
        if isinstance(found, type) or not callable(found):
            return found

        def call(*arguments: Any, **keywords: Any) -> Any:
            self._calls.append((dotted, len(arguments), sorted(keywords)))
            for each in (*arguments, *keywords.values()):
                kind = getattr(getattr(each, "dtype", None), "kind", "f")
                assert kind in "biuf", f"{dotted}: CuPy has no arrays of kind {kind}"
                if self._prefix == "linalg." and kind == "f" and hasattr(each, "dtype"):
                    assert str(each.dtype) in LINEAR, f"{dotted} of {each.dtype}"
            return found(*arguments, **keywords)

        return call


def written(root: Path) -> Iterator[Call]:
    """Yield the calls of `cupy`, `cupyx` and `torch.cuda` in the source."""
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name.startswith(("cupy.", "cupyx.", "torch.cuda.")) and "(" not in name:
                    count = sum(not isinstance(each, ast.Starred) for each in node.args)
                    yield name, count, [each.arg for each in node.keywords if each.arg]


def problem(name: str, count: int, keywords: Sequence[str]) -> str | None:
    """Return why a call of `cupy`, `array_api_compat.cupy` or PyTorch cannot be made, or None."""
    parts, found = name.split("."), None
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        try:
            for part in parts[cut:]:
                found = getattr(found, part)
        except AttributeError:
            return f"{name}: there is no such function"
        break
    try:
        signature = inspect.signature(found)  # type: ignore[arg-type]
    except (ValueError, TypeError):  # a function of C, or a ufunc
        if not isinstance(getattr(found, "nin", None), int):
            return None
        numbers = found.nin, found.nout  # type: ignore[attr-defined]
        fits = count <= sum(numbers) and {*keywords} <= {"out", "dtype", "casting"}
        return None if fits else f"{name}: a ufunc of {numbers} takes no {count}, {keywords}"
    try:
        signature.bind(*range(count), **dict.fromkeys(keywords))
    except TypeError as error:
        return f"{name}{signature}: {error}"
    return None


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Run the array functions through a recording namespace."""
    import array_api_compat
    import numpy as np

    from clinit.analysis.metrics.collapse import neural_collapse
    from clinit.headtrain.heads.closed.methods import SOLVED, Arrival
    from clinit.headtrain.heads.losses import LOSSES
    from clinit.headtrain.heads.start.initialise import initialise
    from clinit.headtrain.heads.start.new_rows import NewClasses
    from clinit.headtrain.heads.start.settings import INITS, SCALES, Start
    from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
    from clinit.headtrain.heads.statistics.solve import LambdaPath, leave_one_out_curve
    from clinit.headtrain.protocol.methods import closed_form
    from clinit.headtrain.protocol.study.parts import CLOSED_METHODS
    from clinit.headtrain.protocol.study.study import Study
    from tests.headtrain.test_arrays_on_a_device import NEW, OLD, head_rows, sample

    calls: list[Call] = []
    real = array_api_compat.array_namespace
    monkeypatch.setattr(
        array_api_compat, "array_namespace", lambda *arrays: Recording(real(*arrays), calls)
    )
    features, labels = sample(np.float32)
    groups, head = np.arange(len(labels)) // 2, head_rows().between(0, OLD + NEW)
    for weighting in ("class", "sample"):
        statistics = ClassStatistics.of(features, labels, weighting=weighting)  # type: ignore[arg-type]
        LambdaPath.of(statistics).head(0.05)
        for each in (None, groups):
            leave_one_out_curve(features, labels, statistics, groups=each)
    neural_collapse(ClassStatistics.of(features, labels), head)
    for solve in SOLVED.values():
        solve(statistics, 0.05)
    data = NewClasses(features, labels, head, OLD, OLD + NEW)
    for init in INITS:
        for scale in SCALES:
            for loss in LOSSES if init == "lda" else ("ce",):
                initialise(Start(**{"init": init, "scale": scale}), data, loss=loss)  # type: ignore[arg-type]
    for method in (each for each in CLOSED_METHODS if each not in SOLVED):
        form = closed_form(Study.of({"method": method}).resolved(), np.zeros(features.shape[1]))
        for task, (start, stop) in enumerate(((0, OLD), (OLD, OLD + NEW))):
            chosen = (labels >= start) & (labels < stop)
            form.learn(Arrival(task, np.abs(features[chosen]), labels[chosen], stop))
        form.scores(np.abs(features))
    return [json.loads(each) for each in sorted({json.dumps(call) for call in calls})]


@pytest.mark.slow
def test_each_call_fits_a_signature_of_cupy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = os.environ.get("CLINIT_CUPY")
    if folder is None:
        pytest.skip("CLINIT_CUPY names no folder with CuPy")
    calls = [(f"array_api_compat.cupy.{name}", *rest) for name, *rest in recorded(monkeypatch)]
    source = Path(importlib.import_module("clinit").__file__ or "").parent
    for part in ("extract", "headtrain", "analysis", "cli"):
        calls += [tuple(call) for call in written((source / part).resolve())]  # type: ignore[misc]
    calls += [
        ("cupyx.scipy.linalg.solve_triangular", 2, ["lower", "trans"]),
        ("torchcodec.decoders.decode_jpeg", 1, ["mode", "device"]),
    ]
    planted = [
        ("array_api_compat.cupy.take", 2, ["axes"]),
        ("cupyx.scipy.linalg.solve_triangular", 2, ["lower", "transposed"]),
        ("cupy.no_such_function", 0, []),
    ]
    (tmp_path / "calls").write_text(json.dumps([*calls, *planted]))
    found = subprocess.run(
        [sys.executable, __file__, str(tmp_path / "calls")],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    problems = json.loads(found.stdout)
    assert len(problems) == len(planted), problems
    assert len(calls) > 60


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    sys.stdout.write(json.dumps([each for call in asked if (each := problem(*call)) is not None]))
