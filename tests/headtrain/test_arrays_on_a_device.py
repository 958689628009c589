"""Array code on arrays that live on a device, as those of CuPy do.

array-api-strict has a second device, from which nothing goes to NumPy, or to the first device,
unless it is sent: what runs there uses the standard's functions alone and mixes nothing.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
import torch

from clinit.headtrain.heads import array
from clinit.headtrain.heads.array import StreamedRows, as_tensor, library, like, to_numpy
from clinit.headtrain.heads.closed.methods import SOLVED
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES
from clinit.headtrain.heads.start.initialise import initialise
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.start.settings import INITS, SCALES, Start
from clinit.headtrain.heads.statistics import leave_one_out, moments
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics, Weighting
from clinit.headtrain.heads.statistics.solve import LambdaPath, least_squares_head
from clinit.headtrain.protocol.stream.buffer import TaskRows
from clinit.headtrain.protocol.stream.scenario import Task
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.train import heads as labelled_rows
from clinit.headtrain.protocol.train.heads import Bank
from clinit.headtrain.protocol.train.task_start import TaskStart

DEVICE = strict.Device("device1")
pytestmark = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="array-api-strict needs NumPy 2.1"
)
OLD, NEW, UNSEEN, DIM, ROWS = 5, 3, 2, 6, 400
WEIGHTINGS: list[Weighting] = ["class", "sample"]
Place = Callable[[np.ndarray], Any]


def on_device(values: np.ndarray) -> Any:
    return strict.asarray(values, device=DEVICE)


def streamed(values: np.ndarray) -> StreamedRows:
    return StreamedRows(values, on_device)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of 256 rows, the least that there is, in parts of 100."""
    monkeypatch.setattr(moments, "GPU_BLOCK_BYTES", 1)
    monkeypatch.setattr(moments, "ONES_ROWS", 100)
    monkeypatch.setattr(leave_one_out, "MOST_ROWS", 80)  # of the new classes, one


def sample(dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Unequal classes, one of them (number 2) without a row."""
    rng = np.random.default_rng(3)
    labels = rng.choice(OLD + NEW, size=ROWS, p=np.array([1, 2, 0, 4, 5, 6, 7, 8]) / 33)
    centres = 2 * rng.normal(size=(OLD + NEW, DIM)) + 1
    return (centres[labels] + rng.normal(size=(ROWS, DIM))).astype(dtype), labels


def head_rows(place: Place = np.asarray) -> Rows:
    rng, classes = np.random.default_rng(4), OLD + NEW + UNSEEN
    return Rows(place(rng.normal(size=(classes, DIM))), place(rng.normal(size=classes)))


def assert_there(found: Any, expected: np.ndarray, tolerance: float = 1e-10) -> None:
    """Assert that an array is on the device and holds these numbers."""
    assert library(found) == "array_api_strict"
    assert found.device == DEVICE
    np.testing.assert_allclose(to_numpy(found), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("place", [on_device, streamed])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_statistics_are_those_of_numpy(weighting: Weighting, place: Place, dtype: type) -> None:
    features, labels = sample(dtype)
    near = ClassStatistics.of(features, labels, num_classes=9, weighting=weighting)
    far = ClassStatistics.of(place(features), labels, num_classes=9, weighting=weighting)
    for name in (
        *("mean", "class_means", "centred_class_means", "total_covariance"),
        *("within_covariance", "target_covariance"),
    ):
        assert_there(getattr(far, name), getattr(near, name))
    np.testing.assert_array_equal(far.counts, near.counts)


@pytest.mark.parametrize(("ratio", "error"), [(2, 1e-12), (64, 1e-6)])
def test_a_gpu_that_is_slow_in_float64_multiplies_in_float32(
    monkeypatch: pytest.MonkeyPatch, ratio: int, error: float
) -> None:
    """Sums stay in float64, so that 400,000 rows are as exact as 400."""
    rated = SimpleNamespace(attributes={"SingleToDoublePrecisionPerfRatio": ratio})
    monkeypatch.setattr("array_api_compat.is_cupy_array", lambda given: True)
    slow = array.is_slow_in_float64(SimpleNamespace(device=rated))
    monkeypatch.undo()
    monkeypatch.setattr(moments, "is_slow_in_float64", lambda rows: slow)
    rows, found = sample()[0], on_device(np.zeros((DIM, DIM)))
    for _ in range(1000):
        found = moments.add_products(found, on_device(rows))
    expected = 1000 * rows.T @ rows
    assert np.abs(to_numpy(found) - expected).max() < error * np.abs(expected).max()
    assert slow == (np.abs(to_numpy(found) - expected).max() > 1e-11 * np.abs(expected).max())


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("lam", [0.0, 0.05])
def test_solves_are_those_of_numpy(weighting: Weighting, lam: float) -> None:
    features, labels = sample()
    near = ClassStatistics.of(features, labels, weighting=weighting)
    far = ClassStatistics.of(on_device(features), labels, weighting=weighting)
    expected = least_squares_head(near, lam)
    for found in (least_squares_head(far, lam), LambdaPath.of(far).head(lam)):
        assert_there(found.weight, expected.weight)
        assert_there(found.bias, expected.bias)


@pytest.mark.parametrize(
    ("scale", "loss", "place"),
    [
        *((scale, "ce", on_device) for scale in SCALES),
        *(("calibrated", loss, on_device) for loss in LOSSES if loss != "ce"),
        ("calibrated", "ce", streamed),
    ],
)
@pytest.mark.parametrize("init", [*INITS, "class-mean unit", "least-square auto"])
def test_new_rows_are_those_of_numpy(init: Any, scale: Any, loss: str, place: Place) -> None:
    features, labels = sample()
    name, _, variant = init.partition(" ")
    config = Start(
        init=name,
        scale=scale,
        class_mean="unit" if variant == "unit" else "raw",
        lam="auto" if variant == "auto" else 0.05,
        bias="keep" if scale == "row-norm" else "write",
    )
    near = initialise(config, NewClasses(features, labels, head_rows(), OLD, OLD + NEW), loss=loss)
    data = NewClasses(place(features), labels, head_rows(on_device), OLD, OLD + NEW)
    far = initialise(config, data, loss=loss)
    tolerance = 1e-6 if scale == "calibrated" else 1e-10  # Newton ends at a promise of 1e-10
    assert_there(far.rows.weight, near.rows.weight, tolerance)
    assert_there(far.rows.bias, near.rows.bias, tolerance)
    assert far.factor == pytest.approx(near.factor, rel=tolerance)
    assert far.lam == near.lam
    libraries = {"random": None, "discriminant": "numpy"}  # discriminants need few rows
    assert far.library == libraries.get(init, "array_api_strict")
    if near.loss_after is not None:
        assert far.loss_after == pytest.approx(near.loss_after, rel=1e-8)


@pytest.mark.parametrize("method", sorted(SOLVED))
def test_solved_heads_are_those_of_numpy(method: str) -> None:
    features, labels = sample()
    near, far = (
        SOLVED[method](ClassStatistics.of(place(features), labels), 0.05)
        for place in (np.asarray, on_device)
    )
    assert_there(far.weight, near.weight)
    assert_there(far.bias, near.bias)


def test_features_in_host_memory_are_streamed_to_the_device_of_the_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, labels = sample(np.float32)
    sent: list[int] = []

    def send(block: np.ndarray, device: torch.device) -> Any:
        sent.append(len(block))
        return on_device(block)

    monkeypatch.setattr(labelled_rows, "placed", send)
    rows = labelled_rows.LabelledRows(torch.from_numpy(features), torch.from_numpy(labels))
    assert rows.arrays().base is not None, "the memory of the tensor"
    np.testing.assert_array_equal(rows.arrays(), features)
    monkeypatch.setattr(labelled_rows.LabelledRows, "is_resident", property(lambda rows: False))
    found = ClassStatistics.of(rows.arrays(), labels)
    assert_there(found.class_means, ClassStatistics.of(features, labels).class_means, 1e-6)
    assert max(sent[1:]) == 256  # a block at a time; the first is the sample for the shift


@pytest.mark.parametrize("init", ["least-square", "class-mean", "lda", "random"])
def test_a_task_starts_on_the_device_and_its_rows_are_written_there(
    monkeypatch: pytest.MonkeyPatch, init: Any
) -> None:
    """The way from features to the bank, with tensors of the bank as arrays of the device."""
    features, labels = sample(np.float32)
    study, head = Study.of({"init": init}).resolved(), head_rows()
    bank = Bank(head, [study.training], torch.device("cpu"))
    task = Task(1, np.arange(NEW), OLD)

    def start(place: Place) -> tuple[Any, dict[str, float]]:
        seen = TaskRows(1, np.arange(len(labels)), labels, 0, 0)
        shared = TaskStart(
            task, OLD, seen, lambda: place(features), lambda: None, None, bank.device
        )
        now = bank.rows(0)
        return shared.start(study, Rows(place(to_numpy(now.weight)), place(to_numpy(now.bias))))

    near, _ = start(np.asarray)
    far, seconds = start(on_device)
    timed = set() if init == "random" else {"features", "statistics", "solve", "calibrate"}
    assert set(seconds) == timed | ({"lambda"} if init == "least-square" else set())
    bank.write(0, OLD, far.rows)
    written = bank.rows(0).weight[OLD : OLD + NEW]
    np.testing.assert_allclose(written, near.rows.weight, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(bank.rows(0).weight[:OLD], head.weight[:OLD].astype(np.float32))


def test_the_library_follows_from_the_device_and_from_what_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.setattr(array, "cupy_problem", lambda: None)
    assert (array.library_for(cuda), array.library_for(cpu)) == ("cupy", "numpy")
    monkeypatch.setattr(array, "cupy_problem", lambda: "CuPy is not installed")
    assert array.library_for(cuda) == "numpy"


def test_arrays_become_tensors_of_the_same_memory() -> None:
    values = np.arange(6.0).reshape(2, 3)
    as_tensor(values)[0, 0] = 5.0
    assert values[0, 0] == 5.0
    assert like(values, values) is values
    assert like(values, torch.ones(1)).data_ptr() == values.ctypes.data
    tensor = torch.ones(2)
    assert as_tensor(tensor) is tensor
