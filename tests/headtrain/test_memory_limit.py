"""Features on disk give the bits that features in memory give, whatever is trained on them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from clinit.extract.cache.read import open_cache
from clinit.headtrain.probe.align import align
from clinit.headtrain.probe.settings import AlignConfig
from clinit.headtrain.protocol.experiment import RunData, run_experiment
from clinit.headtrain.protocol.record.format import RunRecord
from clinit.headtrain.protocol.stream import buffer as memory_module
from clinit.headtrain.protocol.stream.buffer import is_resident
from clinit.headtrain.protocol.stream.source import Source, read_source, read_sources
from clinit.headtrain.protocol.study.study import Study
from clinit.machine import cpu_has_bf16
from clinit.observer import Noted
from tests.headtrain.protocol.stream.made_caches import write_base, write_new, write_views

Caches = tuple[Path, Path]
STREAM = {"tasks": 2, "batch_size": 2, "device": "cpu"}
TRAINED = {**STREAM, "iterations": 30, "eval_every": 26, "buffer": 50}
SMALL = 16_000
"""Of 75,648 bytes of features, two of the four splits fit; copies of 20 rows are held."""


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Caches:
    folder = tmp_path_factory.mktemp("caches")
    base = write_base(folder / "base")
    write_views(base, 2)
    return base, write_new(folder / "new")


def train(
    sides: tuple[Source, ...], settings: dict[str, Any], **options: Any
) -> tuple[list[RunRecord], list[str]]:
    base, new = sides
    assert base.head is not None
    notes: list[str] = []

    def observe(event: object) -> None:
        if isinstance(event, Noted):
            notes.append(event.note)

    study = Study.of(settings)
    return run_experiment(
        RunData(base, new, base.head), [study], observer=observe, **options
    ), notes


def same(one: RunRecord, other: RunRecord) -> None:
    for name in ("classes", "steps", "evaluations", "mistakes"):
        assert getattr(one, name).equals(getattr(other, name))
    assert one.head.weight.tobytes() == other.head.weight.tobytes()


FAMILIES: dict[str, dict[str, Any]] = {
    "least-square": {**TRAINED, "init": "least-square"},
    "lambda": {**TRAINED, "init": "least-square", "scale": "norm"},
    "lda": {**TRAINED, "init": "lda"},
    "fitted": {**TRAINED, "init": "fitted"},
    "full": {**TRAINED, "head_width": "full"},
    "bf16": {**TRAINED, "precision": "bf16"},
    "new rows": {**TRAINED, "init": "class-mean", "init_rows": "new"},
    "joint": {**TRAINED, "method": "joint", "buffer": None},
    **{method: {**STREAM, "method": method} for method in ("ridge", "slda")},
    "ranpac": {**STREAM, "method": "ranpac", "ranpac_width": 64},
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_heads_are_the_same_wherever_their_features_are(caches: Caches, family: str) -> None:
    if family == "bf16" and not cpu_has_bf16():
        pytest.skip("needs a CPU with bfloat16 products")
    settings = {name: value for name, value in FAMILIES[family].items() if value is not None}
    (expected,), notes = train(tuple(map(read_source, caches)), settings)
    assert not any("disk" in note for note in notes)
    # In 40,000 bytes, three splits fit, and copies of 52 rows: the test rows of some tasks.
    for memory in (SMALL, 40_000) if family in ("least-square", "joint", "ridge") else (SMALL,):
        base, new = read_sources(*caches, memory=memory)
        assert not base.train.is_loaded
        (found,), notes = train((base, new), settings)
        same(found, expected)
        assert any("disk" in note for note in notes)


@pytest.mark.parametrize("views", [0, 2])
def test_alignment_is_the_same_wherever_features_are(caches: Caches, views: int) -> None:
    base, _ = caches
    config = AlignConfig(epochs=3, batch_size=32, device="cpu")
    chosen = open_cache(base).views[:views]
    whole, (on_disk,) = read_source(base), read_sources(base, memory=SMALL)
    assert not on_disk.train.is_loaded
    assert whole.head is not None
    one, other = (align(side, whole.head, config, chosen) for side in (whole, on_disk))
    assert one.weight.tobytes() == other.weight.tobytes()
    for name in ("loss_by_epoch", "top1_after"):
        assert (one.alignment or {})[name] == (other.alignment or {})[name]


def test_the_largest_splits_stay_on_disk_until_the_others_fit(caches: Caches) -> None:
    def in_memory(memory: int) -> list[bool]:
        base, new = read_sources(*caches, memory=memory)
        return [part.is_loaded for side in (base, new) for part in (side.train, side.val)]

    # base: 196 + 50 rows of 128 bytes, new: 148 + 50; half of the memory is for them.
    everything = 2 * 128 * (196 + 50 + 148 + 50)
    assert in_memory(everything) == [True, True, True, True]
    assert in_memory(everything - 2) == [False, True, True, True]
    assert in_memory(2 * 128 * 248) == [False, True, True, True]
    assert in_memory(2 * 128 * 248 - 2) == [False, True, False, True]
    assert in_memory(SMALL) == [False, True, False, False]


def test_features_stay_in_host_memory_if_they_would_take_more_than_a_quarter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_module, "free_memory", lambda device: 8_000_000_000)
    assert is_resident(2_000_000_000, torch.device("cuda"))
    assert not is_resident(2_000_000_001, torch.device("cuda"))
    assert is_resident(10**15, torch.device("cpu"))
