"""The benchmark of extraction: its images, its ratios and its bound."""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("extract", "extract_images", "extract_contenders"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("extract")


def passes(script: Any, *seconds: tuple[float, float]) -> list[Any]:
    return [script.Pass(100, wall_s, cpu_s) for wall_s, cpu_s in seconds]


def test_ratios_are_those_of_the_passes_of_one_round(script: Any) -> None:
    found = {
        "clinit": passes(script, (1, 2), (2, 2), (4, 4)),
        "timm loop": passes(script, (2, 4), (2, 6), (4, 4)),
    }
    assert script.rows_of(found) == [
        ["clinit", "50.0", "20.0", "1.00 (1.00-1.00)", "1.00 (1.00-1.00)"],
        ["timm loop", "50.0", "40.0", "1.00 (1.00-2.00)", "2.00 (1.00-3.00)"],
    ]


def test_the_work_bound_adds_the_times_of_both_limits(script: Any) -> None:
    found = {
        "clinit": passes(script, (1, 1)),
        "decoding alone": passes(script, (1, 1)),
        "model alone, 32 per thread": passes(script, (3, 1)),
    }
    assert script.work_bound(found) == pytest.approx(25)
    assert script.rows_of(found)[-1][:2] == ["work bound", "25.0"]


def test_images_have_the_spectrum_of_photographs(script: Any) -> None:
    images = importlib.import_module("extract_images")
    image = images.photograph(np.random.default_rng(0), 256, 256).astype(float).mean(axis=2)
    power = np.abs(np.fft.rfft2(image - image.mean())) ** 2
    frequency = np.hypot(np.fft.fftfreq(256)[:, None], np.fft.rfftfreq(256)[None, :])
    low, high = ((frequency > f / 1.2) & (frequency < f * 1.2) for f in (0.02, 0.2))
    assert power[low].mean() / power[high].mean() == pytest.approx(100, rel=0.4)  # 1 / f^2


@pytest.mark.slow
def test_clinit_takes_turns_with_its_limit(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ["extract.py", "decode", "--images=4", "--rounds=1", "--cases=1", f"--out={tmp_path}"]
    monkeypatch.setattr("sys.argv", [*words, "--contenders", "decoding alone"])
    script.main()
    (text,) = (path.read_text() for path in tmp_path.glob("extract-decode_*.md"))
    names = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert names == ["contender", "clinit", "decoding alone"]
