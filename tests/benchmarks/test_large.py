"""The benchmark of 1.3 million rows: what it writes, and how it tells growth."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("large")


def test_growth_is_the_ratio_of_the_cpu_seconds(script: Any) -> None:
    full, part = script.Cost(10.0, 8.0, 2 * 10**9), script.Cost(4.0, 2.0, 10**9)
    assert script.rows_of([("cache verify", full, part)]) == [
        ["cache verify", "10.0", "8.0", "2.00 GB", "4.0", "2.0", "1.00 GB", "4.0"]
    ]


def test_features_are_written_by_class_with_its_mean(script: Any, tmp_path: Path) -> None:
    script.write_features(tmp_path, "x", 3, 2, 400)
    features = np.load(tmp_path / "x.npy")
    labels = np.load(tmp_path / "x-labels.npy")
    assert (features.dtype, features.shape) == (np.float16, (800, script.DIM))
    means = np.stack([features[labels == number].mean(0, dtype=np.float64) for number in (0, 1)])
    np.testing.assert_allclose(means, script._means()[3:5], atol=1.2)  # six deviations


def test_the_images_are_links_to_one_file_per_class(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "CLASSES", 2)
    script.write_links(tmp_path, script.Size(6, 5))
    files = sorted(tmp_path.glob("train/*/*.gif"))
    assert len(files) == 6
    assert len({path.stat().st_ino for path in files}) == 2


def test_a_short_disk_is_said_before_anything_is_written(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10**6}))
    with pytest.raises(SystemExit, match=r"has 0\.0 GB free"):
        script.check_room(1_300_000)
