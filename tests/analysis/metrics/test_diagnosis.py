import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

import clinit
from clinit.analysis.metrics import diagnosis
from clinit.analysis.metrics.collapse import neural_collapse
from clinit.analysis.metrics.diagnosis import diagnose_splits
from clinit.cli.commands.diagnose import diagnose
from clinit.errors import HeadError
from clinit.extract.cache.head import Head, write_head
from clinit.extract.cache.read import CacheSplit, open_cache
from clinit.extract.work.import_features import import_features
from clinit.extract.work.options import ImportConfig
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics

NAMES = ("ant", "bee", "cat", "dog", "eel")
DIM = 8

app = typer.Typer()
app.command()(diagnose)


def sample() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.sort(rng.choice(5, size=200, p=[0.4, 0.3, 0.1, 0.1, 0.1]))
    centres = rng.normal(size=(5, DIM))
    return (centres[labels] + 0.3 * rng.normal(size=(200, DIM))).astype(np.float32), labels


def make_head(names: tuple[str, ...] | None = NAMES, rows: int = 5, dim: int = DIM) -> Head:
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(rows, dim)).astype(np.float32)
    return Head(weight, rng.normal(size=rows).astype(np.float32), names)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    features, labels = sample()
    np.save(tmp_path / "features.npy", features)
    np.save(tmp_path / "labels.npy", np.array(NAMES)[labels])
    config = ImportConfig(backbone="clip")
    import_features(tmp_path / "features.npy", tmp_path / "labels.npy", tmp_path / "c", config)
    write_head(make_head(), tmp_path / "c" / "head.safetensors")
    return tmp_path / "c"


@pytest.fixture
def split(cache: Path) -> CacheSplit:
    return open_cache(cache).split("train")


def test_rows_of_the_head_are_found_by_class_name(split: CacheSplit) -> None:
    head, order = make_head(), [3, 0, 4, 2, 1]
    shuffled = Head(head.weight[order], head.bias[order], tuple(NAMES[i] for i in order))
    found, expected = (diagnose_splits([split], h, lam=0.1) for h in (shuffled, head))
    assert found.library == expected.library == "numpy"
    values = [each.content() for each in (found, expected)]
    assert [each.pop("library") for each in values] == ["numpy", "numpy"]
    assert values[0] == pytest.approx(values[1], rel=1e-9)


def test_classes_that_only_one_side_knows_do_not_count(split: CacheSplit) -> None:
    head, kept = make_head(), [0, 1, 3]
    names = (*(NAMES[i] for i in kept), "fox")
    weight = np.r_[head.weight[kept], np.ones((1, DIM), dtype=np.float32)]
    found = diagnose_splits([split], Head(weight, np.r_[head.bias[kept], 1], names), lam=0.1)
    features, labels = sample()
    known = np.isin(labels, kept)
    statistics = ClassStatistics.of(features[known], np.searchsorted(kept, labels[known]))
    expected = neural_collapse(statistics, Rows(head.weight[kept], head.bias[kept]))
    assert found.collapse.classes == 3
    assert found.collapse.nc1 == pytest.approx(expected.nc1, rel=1e-9)
    assert found.collapse.nc2 == pytest.approx(expected.nc2, rel=1e-9)


def test_a_head_without_names_has_the_classes_of_the_cache(split: CacheSplit) -> None:
    found = diagnose_splits([split], make_head(None), lam=0.1)
    assert found.content() == diagnose_splits([split], make_head(), lam=0.1).content()


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (make_head(dim=7), "width 7 of the backbone unknown, .* holds width 8"),
        (replace(make_head(), fingerprint="0" * 64), "of the backbone 000000000000"),
        (make_head(None, rows=6), "6 rows without class names, .* has 5 classes"),
        (make_head(("x", "y", "z", "u", "v")), "fewer than two classes of .* are among the 5"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(split: CacheSplit, head: Head, message: str) -> None:
    with pytest.raises(HeadError, match=message):
        diagnose_splits([split], head, lam=0.1)


def test_the_command_prints_what_each_number_means(cache: Path) -> None:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, [str(cache)], catch_exceptions=False)
    assert result.exit_code == 0
    for text in ("NC1", "D_LS", "rel.", "simplex ETF", "200 rows of 5 classes"):
        assert text in result.output


def test_several_caches_are_measured_as_one(cache: Path, tmp_path: Path) -> None:
    features, labels = sample()
    for name, rows in (("one", labels < 2), ("two", labels == 2), ("rest", labels > 2)):
        np.save(tmp_path / "f.npy", features[rows])
        np.save(tmp_path / "l.npy", np.array(NAMES)[labels[rows]])
        config = ImportConfig(backbone="clip")
        import_features(tmp_path / "f.npy", tmp_path / "l.npy", tmp_path / name, config)
    parts = [str(tmp_path / name) for name in ("one", "two", "rest")]
    head = str(cache / "head.safetensors")
    found = [clinit.diagnose(each, head).content() for each in (parts, cache)]
    assert len({each.pop("library") for each in found}) == 1  # CuPy, if there is a GPU
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    shown = CliRunner().invoke(app, [*parts, "--head", head, "--json"], catch_exceptions=False)
    content = json.loads(shown.stdout)
    assert content["nc1"] == pytest.approx(found[0]["nc1"])
    names = ["nc2", "nc3", "nc4", "nc2_floor", "nc3_floor", "d_ls", "d_ls_relative", "d_ls_angle"]
    assert all(isinstance(content[name], float) for name in (*names, "cut"))
    assert content["lambda"] == 0.05


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_device_gives_what_the_cpu_gives(split: CacheSplit, name: str) -> None:
    """On the CPU this is a rehearsal."""
    if name == "cuda":
        pytest.importorskip("cupy")
    head = make_head()
    near = diagnose_splits([split], head, lam=0.1)
    far = diagnose_splits([split], head, lam=0.1, device=torch.device(name))
    assert far.library == ("cupy" if name == "cuda" else "numpy")
    ours, theirs = near.content(), far.content()
    for metric in ("nc1", "nc2", "nc3", "nc4", "d_ls", "d_ls_relative"):
        assert theirs[metric] == pytest.approx(ours[metric], rel=1e-9)


def test_the_split_is_streamed_to_the_device_block_by_block(
    split: CacheSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, there = make_head(), array_api_strict.Device("device1")
    near = diagnose_splits([split], head, lam=0.1)
    sent: list[int] = []

    def send(features: np.ndarray, device: torch.device) -> Any:
        assert device.type == "cuda"
        sent.append(len(features))
        return array_api_strict.asarray(features.astype(np.float32), device=there)

    monkeypatch.setattr(diagnosis, "placed", send)
    monkeypatch.setattr(diagnosis, "torch_stream", lambda device: nullcontext())
    far = diagnose_splits([split], head, lam=0.1, device=torch.device("cuda"))
    assert sum(sent) == near.rows
    assert far.collapse.nc1 == pytest.approx(near.collapse.nc1)
    assert far.deviation.d_ls == pytest.approx(near.deviation.d_ls)
