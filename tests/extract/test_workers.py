"""Several workers on one cache: parts, shared shards, and the same bits as one worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from clinit.errors import CacheError
from clinit.extract import claims as claims_module
from clinit.extract.backbone import BackboneConfig
from clinit.extract.cache import open_cache, open_split, verify_shard
from clinit.extract.claims import Claims
from clinit.extract.dataset.scan import scan
from clinit.extract.part import Part
from clinit.extract.plan import shard_name
from clinit.extract.progress import Progress
from clinit.extract.run import ExtractConfig, extract, extract_part
from clinit.extract.split_run import PartResult, SplitResult, SplitRun

Results = list[SplitResult | PartResult]


@pytest.fixture
def config(tiny_weights: Path) -> ExtractConfig:
    model_args: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}
    backbone = BackboneConfig(name="convnextv2_atto", weights=tiny_weights, model_args=model_args)
    return ExtractConfig(backbone=backbone, input_size=32, batch_size=2, shard_rows=2, workers=1)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "POLL_S", 0.02)


def work(
    root: Path,
    out: Path,
    config: ExtractConfig,
    part: Part | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Results:
    manifests = {split: scan("folder", root, split).manifest for split in ("train", "val")}
    return list(extract_part(manifests, root, out, config, part or Part(), on_progress=on_progress))


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a cache but what tells of the run itself, and the locks of its head."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "cache.json"
    }


def test_parts_are_computed_one_by_one_and_the_last_one_completes_the_cache(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree()  # 15 and 6 images: 8 and 3 shards
    work(root, tmp_path / "whole", config)
    first = work(root, tmp_path / "parts", config, Part(1, 3))
    assert [type(result) for result in first] == [PartResult, PartResult]
    assert [result.computed_rows for result in first] == [6, 2]
    assert [r.shards_there for r in first if isinstance(r, PartResult)] == [3, 1]
    with pytest.raises(CacheError, match="holds 3 of 8 shards: its extraction was interrupted"):
        open_split(tmp_path / "parts" / "train")
    again = work(root, tmp_path / "parts", config, Part(1, 3))
    assert [result.computed_rows for result in again] == [0, 0]
    third = work(root, tmp_path / "parts", config, Part(3, 3))
    assert [result.computed_rows for result in third] == [4, 2]
    last = work(root, tmp_path / "parts", config, Part(2, 3))
    assert [type(result) for result in last] == [SplitResult, SplitResult]
    assert [result.computed_rows for result in last] == [5, 2]
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def test_a_command_without_a_part_computes_what_no_part_has(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree()
    work(root, tmp_path / "whole", config)
    work(root, tmp_path / "parts", config, Part(2, 2))
    rest = work(root, tmp_path / "parts", config)
    assert [result.computed_rows for result in rest] == [8, 4]
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


@pytest.mark.slow
def test_workers_at_once_share_the_shards_and_compute_none_twice(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree(train=20)
    config = replace(config, views=1)
    work(root, tmp_path / "whole", config)
    barrier, found = threading.Barrier(3), list[Results]()

    def worker() -> None:
        barrier.wait()
        found.append(work(root, tmp_path / "shared", config))

    threads = [threading.Thread(target=worker) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    computed = [[result.computed_rows for result in results] for results in found]
    assert [sum(each) for each in zip(*computed, strict=True)] == [60, 6, 60]
    assert files(tmp_path / "shared") == files(tmp_path / "whole")
    assert open_cache(tmp_path / "shared").split("train").summary.num_rows == 60


def test_who_waits_for_another_worker_says_so_and_counts_what_it_finds(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree(train=2, val=1)
    work(root, tmp_path / "whole", config)
    out, told = tmp_path / "shared", list[Progress]()
    work(root, out, config, Part(2, 2))
    (out / "train" / "cache.json").unlink(missing_ok=True)
    with Claims(out / "train") as other:
        assert other.take(shard_name(0))

        def on_progress(progress: Progress) -> None:
            told.append(progress)
            if progress.waiting and not (out / "train" / shard_name(0)).exists():
                whole = tmp_path / "whole" / "train" / shard_name(0)
                (out / "train" / shard_name(0)).write_bytes(whole.read_bytes())
                other.release(shard_name(0))

        results = work(root, out, config, on_progress=on_progress)
    waited = next(progress.waiting for progress in told if progress.waiting)
    assert waited.startswith("waiting for process ")
    assert told[-1].rows_done == told[-1].rows_total
    assert results[0].computed_rows == 2
    assert files(out) == files(tmp_path / "whole")


def test_a_shard_of_another_worker_that_is_damaged_is_computed_here(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree(train=4, val=1)  # 6 shards of train, 3 of which are prepared at a time
    work(root, tmp_path / "whole", config)
    out = tmp_path / "shared"
    last = out / "train" / shard_name(5)

    def damage(progress: Progress) -> None:
        if progress.split == "train" and not last.exists():
            last.write_bytes(b"half of a shard")

    results = work(root, out, config, on_progress=damage)
    assert results[0].computed_rows == 12
    assert files(out) == files(tmp_path / "whole")


def test_invalid_rows_are_read_again_by_one_of_two_workers(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree()
    out, image = tmp_path / "shared", root / "train" / "a" / "1.png"
    kept = image.read_bytes()
    image.write_bytes(b"x" * len(kept))
    work(root, out, config)
    assert open_split(out / "train").num_valid == 14
    image.write_bytes(kept)
    work(root, tmp_path / "whole", config)
    again, found = replace(config, retry_invalid=True), list[Results]()
    threads = [
        threading.Thread(target=lambda: found.append(work(root, out, again))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(results[0].computed_rows for results in found) == 2
    assert files(out) == files(tmp_path / "whole")
    assert open_split(out / "train").num_valid == 15


def test_a_summary_that_another_worker_made_of_shards_since_replaced_does_not_stay(
    make_tree: Callable[..., Path],
    config: ExtractConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = make_tree()
    out, image = tmp_path / "shared", root / "train" / "a" / "1.png"
    kept = image.read_bytes()
    image.write_bytes(b"x" * len(kept))
    work(root, out, config)
    image.write_bytes(kept)
    summary = out / "train" / "cache.json"
    old = summary.read_bytes()

    def write_late(folder: Path) -> None:
        """Finish a summary of what was there before, right after it was withdrawn."""
        if folder == summary.parent:
            summary.write_bytes(old)

    monkeypatch.setattr("clinit.extract.split_run.flush_folder", write_late)
    work(root, out, replace(config, retry_invalid=True))
    split = open_split(out / "train")
    assert split.num_valid == 15
    assert [verify_shard(split, shard) for shard in range(8)] == [None] * 8


def test_the_whole_extraction_returns_complete_splits_alone(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree()
    manifests = {"val": scan("folder", root, "val").manifest}
    (result,) = extract(manifests, root, tmp_path / "cache", config)
    assert result.split.num_rows == 6


def test_a_small_image_set_has_fewer_shards_than_parts(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree(classes="a", train=1, val=1)
    Image.new("RGB", (40, 36)).save(root / "train" / "a" / "2.png")
    first = work(root, tmp_path / "cache", config, Part(4, 4))
    assert [type(result) for result in first] == [PartResult, PartResult]
    assert [result.computed_rows for result in first] == [0, 0]


def test_a_part_of_a_complete_cache_does_not_answer_for_other_parts(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    work(root, out, config)
    (result, _) = work(root, out, config, Part(1, 2))
    assert isinstance(result, SplitResult)
    assert result.part == Part(1, 2)
    (out / "train" / shard_name(1)).unlink()
    (result, _) = work(root, out, config, Part(1, 2))
    assert isinstance(result, PartResult)
    assert (result.shards_there, result.computed_rows) == (7, 0)


def test_a_damaged_shard_of_another_part_is_left_to_it(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, out = make_tree(), tmp_path / "parts"
    work(root, tmp_path / "whole", config)
    work(root, out, config, Part(2, 2))
    (out / "train" / shard_name(1)).write_bytes(b"half of a shard")
    (train, val) = work(root, out, config, Part(1, 2))
    assert isinstance(train, PartResult)
    assert train.computed_rows == 8
    assert shard_name(1) in train.problem
    assert isinstance(val, SplitResult), "it goes on with the other split"
    (train, _) = work(root, out, config, Part(2, 2))
    assert train.computed_rows == 2
    assert files(out) == files(tmp_path / "whole")


def test_names_that_are_given_while_another_worker_runs_stay(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path, tiny_weights: Path
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    unnamed = tmp_path / "unnamed.safetensors"
    save_file(load_file(tiny_weights), unnamed)
    config = replace(config, backbone=replace(config.backbone, weights=unnamed))
    manifests = {split: scan("folder", root, split).manifest for split in ("train", "val")}
    slow = extract(manifests, root, out, config)
    next(slow)
    list(extract(manifests, root, out, replace(config, head_classes="dataset")))
    next(slow)
    cache = open_cache(out)
    assert cache.head is not None
    assert cache.head.class_names == ("a", "b", "c")
    assert cache.split("val").summary.head.total == 6


def test_a_shard_without_any_image_is_the_same_whoever_computes_it(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree()
    manifest = scan("folder", root, "train").manifest
    for path in manifest.table["path"][2:4]:  # all of shard 1
        (root / path).unlink()
    manifests = {"train": manifest}
    list(extract_part(manifests, root, tmp_path / "parts", config, Part(2, 2)))
    list(extract_part(manifests, root, tmp_path / "parts", config, Part(1, 2)))
    list(extract(manifests, root, tmp_path / "whole", config))
    assert files(tmp_path / "parts") == files(tmp_path / "whole")
    assert open_split(tmp_path / "parts" / "train").num_valid == 13


def test_a_late_worker_does_not_write_a_summary_again(
    make_tree: Callable[..., Path],
    config: ExtractConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    manifests = {"train": scan("folder", root, "train").manifest}
    late = SplitRun._missing_shards

    def meanwhile(run: SplitRun, finished: object) -> Any:
        found = late(run, None)
        monkeypatch.undo()
        list(extract(manifests, root, out, config))
        return found

    monkeypatch.setattr(SplitRun, "_missing_shards", meanwhile)
    (result,) = extract(manifests, root, out, config)
    assert (result.computed_rows, result.shared_rows, result.run) == (0, 15, None)
    assert result.split.summary.run.computed_rows == 15
