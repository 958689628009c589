"""Caches summed to a file: against NumPy, and what reads the file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import clinit
from clinit.errors import CacheError, ClinitError, ExperimentError, StatisticsError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.groups import write_groups
from clinit.extract.cache.read import open_split
from clinit.headtrain.heads.repeats import groups_of
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics, Weighting
from clinit.headtrain.model.export import export_model
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.model import load_model
from clinit.headtrain.model.settings import AddConfig
from clinit.headtrain.protocol.experiment import RunData
from clinit.headtrain.protocol.record.format import RunRecord
from clinit.headtrain.protocol.runs import train_heads
from clinit.headtrain.protocol.stream.source import Source, read_source, read_sources
from clinit.headtrain.protocol.stream.summed import Summed, read_summed, sum_caches
from clinit.headtrain.protocol.study.study import Study
from clinit.observer import Event, Progressed
from tests.conftest import unwritten
from tests.headtrain.model.test_add import added, arriving
from tests.headtrain.protocol.stream.made_caches import (
    CLASSES,
    DIM,
    write_base,
    write_new,
    write_split,
)

WEIGHTINGS: list[Weighting] = ["class", "sample"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A cache of five shards with invalid rows, far from 0, and groups that cross shards."""
    cache = tmp_path / "base"
    write_base(cache)
    centres = 30 + np.random.default_rng(0).normal(size=(CLASSES, DIM))
    for shard in (cache / "train").glob("*"):
        shard.unlink()
    write_split(cache, "train", centres, 40, bad=[3, 41, 42, 43])
    return cache


def assert_same(found: ClassStatistics, expected: ClassStatistics, rtol: float = 1e-12) -> None:
    np.testing.assert_array_equal(found.totals, expected.totals)
    for name in ("mean", "class_means", "total_covariance", "within_covariance"):
        one, other = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(one, other, rtol=0, atol=rtol * np.abs(other).max())


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_the_file_holds_what_numpy_finds(base: Path, tmp_path: Path, weighting: Weighting) -> None:
    clinit.sum_caches([base], out := tmp_path / "all.safetensors", weighting)
    found = clinit.read_summed(out).statistics
    rows = read_source(base).train
    features, labels = rows.features.astype(np.float64), rows.labels
    means = np.stack([features[labels == label].mean(0) for label in range(CLASSES)])
    weights = 1 / np.bincount(labels)[labels] / CLASSES
    weights = np.full(len(labels), 1 / len(labels)) if weighting == "sample" else weights
    mean = weights @ features
    for name, centred in (
        ("within_covariance", features - means[labels]),
        ("total_covariance", features - mean),
    ):
        expected = (centred * weights[:, None]).T @ centred
        np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.class_means, means, rtol=1e-12)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_grouped_rows_are_summed_as_in_memory(
    base: Path, tmp_path: Path, weighting: Weighting
) -> None:
    split, progress = open_split(base / "train"), list[Event]()
    table = pl.DataFrame({"path": split.manifest.table["path"]}).with_row_index("row")
    values = table.select("path", video=pl.col("row") % 9)  # every ninth image shows the same
    values.write_csv(tmp_path / "videos.csv")
    write_groups(split.path, split.manifest, tmp_path / "videos.csv", "video")
    rows = read_source(base).train
    given = {"num_classes": CLASSES, "weighting": weighting, "groups": groups_of(rows)}
    expected = ClassStatistics.of(rows.features, rows.labels, **given)  # type: ignore[arg-type]
    out = tmp_path / "all.safetensors"
    assert_same(sum_caches([base], out, weighting, None, progress.append).statistics, expected)
    assert progress[-1] == Progressed("Summing", 200, 200, "rows")
    with unwritten(out):
        assert_same(sum_caches([base], out, weighting).statistics, expected)  # it is there


def test_several_caches_give_the_rows_of_all(base: Path, tmp_path: Path) -> None:
    more, out = tmp_path / "more", tmp_path / "all.safetensors"
    write_split(more, "train", np.ones((2, DIM)), 30)
    found = sum_caches([more, base], out)
    sides = [read_source(path).train.named(found.class_names) for path in (more, base)]
    rows = FeatureSet.joined(sides, found.class_names)
    expected = ClassStatistics.of(rows.features, rows.labels)
    assert_same(found.statistics, expected, rtol=1e-11)  # the means of both caches are far apart


STUDIES: dict[str, dict[str, Any]] = {
    "drawn": {"old_rows": "statistics", "iterations": 8, "anchor": "moments"},
    "ridge": {"method": "ridge", "lam": 0.05, "weighting": "sample"},
    "lda": {"method": "lda"},
    "ncm": {"method": "ncm"},
    "slda": {"method": "slda"},
    "simplecil": {"method": "simplecil"},
    "naive": {"method": "naive", "iterations": 4},
}


@pytest.mark.parametrize("name", STUDIES)
def test_a_head_from_the_file_is_the_head_from_the_cache(
    base: Path, tmp_path: Path, name: str
) -> None:
    study = Study.of({"tasks": 2, "device": "cpu", **STUDIES[name]}).resolved()

    def train(*sides: Path, head: Path | None = None) -> RunRecord:
        first, arriving = read_sources(sides, new)
        data = RunData.of(first, arriving, {"": head})
        return train_heads(data, [study])[study]

    weighting: Weighting = "sample" if name in ("ridge", "slda") else "class"
    write_new(new := tmp_path / "new")
    clinit.sum_caches([base], out := tmp_path / "all.safetensors", weighting)
    one, other = train(base), train(out, base)
    alone = train(out, head=base / "head.safetensors")
    np.testing.assert_allclose(other.head.weight, one.head.weight, rtol=1e-5, atol=1e-5)
    assert other.evaluations.equals(one.evaluations)
    assert other.classes.equals(one.classes)
    assert (other.info["base"] or {})["statistics_digest"] == read_summed(out).digest
    np.testing.assert_array_equal(alone.head.weight, other.head.weight)
    assert set(alone.evaluations["row"]) == {*range(CLASSES, len(one.classes))}


def test_a_diagnosis_of_the_file_is_that_of_the_cache(base: Path, tmp_path: Path) -> None:
    clinit.sum_caches([base], out := tmp_path / "all.safetensors")
    one = clinit.diagnose(base, split="train").content()
    assert clinit.diagnose(out, base / "head.safetensors").content() == pytest.approx(one)


@pytest.mark.slow
def test_a_model_draws_the_rows_of_classes_it_remembers_nothing_of(
    tiny_run: Path, tmp_path: Path
) -> None:
    exported = export_model(tiny_run, tmp_path / "plain")
    model = replace(load_model(exported.path, device="cpu"), memory=None)
    rng, names = np.random.default_rng(0), model.facts.class_names
    rows = FeatureSet(rng.normal(size=(60, 12)), np.arange(60) % 2, names[:2])
    statistics = ClassStatistics.of(rows.features, rows.labels)
    nothing = rows.nothing()
    summed = Summed(names[:2], Fingerprint(), statistics)
    given = added(model, arriving(), AddConfig(), old=Source(nothing, nothing, summed=summed)).model
    memory = Memory.of(rows.named(names), model.depends_on)
    expected = added(replace(model, memory=memory), arriving(), AddConfig()).model
    np.testing.assert_array_equal(given.head.weight, expected.head.weight)
    assert given.memory.known.tolist() == [True, True, *[False] * (len(names) - 2), True, True]


def other_network(base: Path, new: Path, out: Path) -> object:
    other = Fingerprint({"backbone": "made", "weights": "2"})
    write_split(new := new.with_name("other"), "train", np.ones((2, DIM)), 9, fingerprint=other)
    return clinit.train([out, base], new, {"method": "ncm"})


def flipped(base: Path, new: Path, out: Path) -> object:
    content = bytearray(out.read_bytes())
    content[-1] ^= 1
    out.write_bytes(content)
    return read_summed(out)


def fewer_classes(base: Path, new: Path, out: Path) -> object:
    head = clinit.load_head(base / "head.safetensors")
    less = replace(
        head, weight=head.weight[1:], bias=head.bias[1:], class_names=head.class_names[1:]
    )
    return clinit.diagnose(out, less)


def a_part(base: Path, new: Path, out: Path) -> object:
    found = read_summed(out)
    counts = found.statistics.counts // 2
    replace(found, statistics=replace(found.statistics, counts=counts)).write(out)
    return read_summed(out)


def trained(**study: Any) -> Callable[[Path, Path, Path], object]:
    return lambda base, new, out: clinit.train([out, base], new, study)


@pytest.mark.parametrize(
    ("call", "error", "fact"),
    [
        (other_network, CacheError, "different backbones"),
        (flipped, StatisticsError, "has changed"),
        (a_part, StatisticsError, "97 of 196"),
        (fewer_classes, StatisticsError, "1 classes"),
        (
            lambda base, new, out: clinit.sum_caches([new], out),
            StatisticsError,
            "classes .* differ",
        ),
        (
            lambda base, new, out: clinit.sum_caches([base], out, "sample"),
            StatisticsError,
            r"weighting \(class / sample\) differ",
        ),
        (lambda base, new, out: clinit.sum_caches([base, base], out), CacheError, "more than one"),
        (trained(), ExperimentError, "rehearsal reads rows"),
        (trained(method="ridge"), ExperimentError, "ridge reads rows"),
        (trained(method="slda"), StatisticsError, "slda needs sample"),
    ],
)
def test_what_the_file_cannot_do_is_refused(
    base: Path, tmp_path: Path, call: Callable[..., object], error: type[ClinitError], fact: str
) -> None:
    write_new(new := tmp_path / "new")
    clinit.sum_caches([base], out := tmp_path / "all.safetensors")
    with pytest.raises(error, match=fact):
        call(base, new, out)
