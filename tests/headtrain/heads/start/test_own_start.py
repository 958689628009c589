"""Starts of a user: rows, leave-one-out logits, import paths and refusals."""

import functools
import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clinit.errors import ExperimentError
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.initialise import initialise
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.protocol.study.study import Study, run_name
from clinit.setting import Imported
from tests.headtrain.heads.start import test_left_out as left_out
from tests.headtrain.heads.start.test_left_out import DIM

START, STOP, ROWS = 2, 4, 26


def class_means(features: Any, labels: Any, head: Rows, statistics: Any) -> Any:
    """The built-in start `class-mean`, from the rows themselves."""
    new = range(len(head.weight), labels.max() + 1)
    weight = np.array([features[labels == label].mean(axis=0) for label in new])
    return weight, np.ones(len(weight))


INITS: Any = (class_means, "class-mean")


def least_squares(features: Any, labels: Any, head: Rows, statistics: Any) -> Rows:
    """Ridge regression on one-hot labels; each row weighs 1 / `ROWS` whoever is left out."""
    targets, z = np.eye(STOP)[labels], np.column_stack([features, np.ones(len(features))])
    system = z.T @ z / ROWS + 0.3 * np.eye(DIM + 1)
    solved = np.linalg.solve(system, z.T @ targets / ROWS).T[START:]
    return Rows(solved[:, :-1], solved[:, -1])


def from_statistics(features: Any, labels: Any, head: Rows, statistics: Any) -> Any:
    means = statistics.class_means[len(head.weight) :]
    return means, np.ones(len(means))


def made(*counts: int) -> NewClasses:
    return left_out.made(counts=counts or (5, 6, 7, 8), start=START)


def logits(start: Start, data: NewClasses) -> np.ndarray:
    return left_out.left_out_logits(start, data, 0.3)


@pytest.mark.parametrize("bias", ["write", "keep"])
@pytest.mark.parametrize("scale", ["none", "norm", "row-norm", "calibrated"])
@pytest.mark.parametrize("own", [class_means, from_statistics])
def test_own_class_means_start_like_the_built_in_ones(own: Any, scale: Any, bias: Any) -> None:
    found, built_in = (
        initialise(Start(init=init, scale=scale, bias=bias), made()).rows
        for init in (own, "class-mean")
    )
    np.testing.assert_allclose(found.weight, built_in.weight, rtol=1e-6)
    np.testing.assert_allclose(found.bias, built_in.bias, rtol=1e-6)


@pytest.mark.parametrize("bias", ["write", "keep"])
def test_left_out_logits_are_those_of_the_closed_forms(bias: Any) -> None:
    pairs: Any = (class_means, "class-mean"), (least_squares, "least-square")
    for own, built_in in pairs:
        start = Start(init=own, bias=bias, weighting="sample")
        expected = logits(replace(start, init=built_in), made())
        np.testing.assert_allclose(logits(start, made()), expected, rtol=1e-5, atol=1e-7)


def test_images_that_repeat_each_other_are_left_out_together() -> None:
    data = made()
    groups = np.array([10 * label + np.sum(data.labels[:row] == label) // 2
                       for row, label in enumerate(data.labels)])  # fmt: skip
    found = logits(Start(init=class_means), replace(data, groups=groups))
    for row in np.flatnonzero(data.labels >= START):
        kept = groups != groups[row]
        mean = data.features[kept & (data.labels == data.labels[row])].mean(axis=0)
        own = found[row, data.labels[row] - START]
        np.testing.assert_allclose(own, data.features[row] @ mean + 1, rtol=1e-5)


def test_with_many_images_each_of_a_class_of_32_is_still_left_out_alone() -> None:
    data = made(40, 50, 32, 20)
    own, built_in = (logits(Start(init=init), data) for init in INITS)
    at = data.labels >= START
    columns = data.labels[at] - START
    np.testing.assert_allclose(own[at, columns], built_in[at, columns], rtol=1e-5)


def test_new_classes_of_one_image_start_at_the_norm_of_the_old_rows() -> None:
    own, built_in = (initialise(Start(init=init), made(5, 6, 1, 1)) for init in INITS)
    np.testing.assert_allclose(own.rows.weight, built_in.rows.weight, rtol=1e-6)


def test_a_function_and_its_path_are_one_study_with_a_name_without_digest() -> None:
    path = f"{__name__}:class_means"
    by_path, by_function = Study.of({"init": path}), Study.of({"init": class_means})
    assert by_path == by_function
    assert by_path.start == Start(init=class_means)
    recorded = by_path.resolved().settings()
    assert recorded["init"].startswith(f"{path}@")
    assert Study.of({"init": recorded["init"]}) == by_path
    assert run_name(recorded) == f"{__name__}.class_means-calibrated"


def test_packages_offer_starts_by_entry_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "theirs-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[clinit.starts]\ntheirs = {__name__}:class_means\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert Study.of({"init": "theirs"}).start == Start(init=class_means)


def one_number(*given: Any) -> Any:
    return 5


def too_few(*given: Any) -> Any:
    return np.zeros((1, DIM)), np.zeros(1)


def integers(*given: Any) -> Any:
    return np.zeros((2, DIM), int), np.zeros(2)


def not_finite(*given: Any) -> Any:
    return np.zeros((2, DIM)), np.array([0, np.nan])


@pytest.mark.parametrize(
    ("function", "fact"),
    [
        (one_number, "returned int, expected weight and bias"),
        (too_few, r"weight float64 \(1, 7\), expected floats \(2, 7\)"),
        (integers, "weight int64"),
        (not_finite, "bias that is not finite"),
    ],
)
def test_what_is_no_rows_is_refused(function: Any, fact: str) -> None:
    with pytest.raises(ExperimentError, match=fact):
        initialise(Start(init=function), made())


@pytest.mark.parametrize(
    ("path", "fact"),
    [
        ("nowhere:rows", "No module named 'nowhere'"),
        ("mine:nothing", "has no attribute 'nothing'"),
        ("mine:number", "is no function but int"),
        ("broken:rows", "ZeroDivisionError: division by zero"),
        ("leaving:rows", "SystemExit"),
        ("mine:rows@0123456789ab", "has changed: .* the run has 0123456789ab"),
    ],
)
def test_what_cannot_be_imported_is_refused(
    path: str, fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text("number = 3\ndef rows(*given): ...\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ExperimentError, match=fact):
        Imported(Imported.of(path)).load()


def test_a_module_that_has_changed_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changing.py").write_text("raise AssertionError('it ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "whole").mkdir()
    for name in ("__init__.py", "part.py"):
        (tmp_path / "whole" / name).write_text("raise AssertionError('it ran')\n")
    path = list(sys.path)
    for module in ("changing", "whole.part"):
        with pytest.raises(ExperimentError, match="has changed"):
            Imported(f"{module}:rows@0123456789ab").load()
    assert (sys.path, "whole" in sys.modules) == (path, False)


def test_a_function_is_the_one_that_its_path_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "edited.py").write_text("def rows(*given): ...\n")
    given = importlib.import_module("edited").rows
    assert Imported.of(given) == Imported.of("edited:rows")
    for other in (functools.wraps(given)(lambda *_: 1), functools.partial(given)):
        with pytest.raises(ExperimentError, match="that was given"):
            Imported.of(other)
    (tmp_path / "edited.py").write_text("def rows(*given): return 1\n")
    with pytest.raises(ExperimentError, match="edited after its import"):
        Imported.of(given)
    importlib.reload(sys.modules["edited"])
    Imported.of("edited:rows")


@pytest.mark.parametrize("word", ["leas-square", 3])
def test_a_word_that_is_no_start_is_refused_with_those_there_are(word: Any) -> None:
    with pytest.raises(ValueError, match=r"package\.module:function or 'random'"):
        Study.of({"init": word})
