"""Parts of an extraction: each by itself, at once or killed, with the bits of the whole."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from clinit.errors import CacheError, ClinitError
from clinit.extract.cache.plan import WHOLE, Part, shard_name
from clinit.extract.cache.read import open_cache, open_split
from clinit.extract.dataset.scan import scan
from clinit.extract.network.backbone import BackboneConfig
from clinit.extract.work.run import ExtractConfig, extract
from clinit.extract.work.split_run import SplitResult


@pytest.fixture
def config(tiny_weights: Path) -> ExtractConfig:
    model_args: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}
    backbone = BackboneConfig(name="convnextv2_atto", weights=tiny_weights, model_args=model_args)
    return ExtractConfig(backbone=backbone, input_size=32, batch_size=2, shard_rows=2, workers=1)


def work(root: Path, out: Path, config: ExtractConfig, part: Part = WHOLE) -> list[SplitResult]:
    manifests = {split: scan("folder", root, split).manifest for split in ("train", "val")}
    return list(extract(manifests, root, out, config, part))


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a cache but what tells of the run itself; no draft and no lock may be left."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "cache.json"
    }


@pytest.mark.parametrize(("shards", "count"), [(10, 3), (2, 5), (1, 1), (7, 7)])
def test_parts_hold_every_shard_once_and_differ_by_one_at_most(shards: int, count: int) -> None:
    parts = [Part(number, count).shards(shards) for number in range(1, count + 1)]
    assert sorted(shard for part in parts for shard in part) == list(range(shards))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["", "auto", "0/4", "5/4", "1", "1/0", "-1/4", "1/4/4", "a/b"])
def test_what_is_no_part_is_refused(text: str) -> None:
    assert Part.parse("3/4") == Part(3, 4)
    with pytest.raises(ClinitError, match="expected i/n") as caught:
        Part.parse(text)
    assert "SLURM_ARRAY_TASK_COUNT" in caught.value.remedy


def test_parts_are_computed_one_by_one_and_the_last_one_completes_the_cache(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root = make_tree()  # 15 and 6 images: 8 and 3 shards
    for path in scan("folder", root, "train").manifest.table["path"][2:4]:
        Image.new("RGB", (40, 36)).save(root / path)
        (root / path).write_bytes(b"")  # no image of shard 1 can be read
    work(root, tmp_path / "whole", config)
    first = work(root, tmp_path / "parts", config, Part(1, 3))
    assert [result.is_complete for result in first] == [False, False]
    assert [result.computed_rows for result in first] == [6, 2]
    assert [result.shards_there for result in first] == [3, 1]
    with pytest.raises(CacheError, match="holds 3 of 8 shards: its extraction was interrupted"):
        open_split(tmp_path / "parts" / "train")
    again = work(root, tmp_path / "parts", config, Part(1, 3))
    assert [result.computed_rows for result in again] == [0, 0]
    third = work(root, tmp_path / "parts", config, Part(3, 3))
    assert [result.computed_rows for result in third] == [4, 2]
    last = work(root, tmp_path / "parts", config)
    assert [result.is_complete for result in last] == [True, True]
    assert [result.computed_rows for result in last] == [5, 2]
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def test_parts_at_once_give_the_bits_of_the_whole(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, found = make_tree(), list[list[SplitResult]]()
    config = replace(config, views=1)
    work(root, tmp_path / "whole", config)
    barrier = threading.Barrier(3)

    def worker(number: int) -> None:
        barrier.wait()
        found.append(work(root, tmp_path / "shared", config, Part(number, 3)))

    threads = [threading.Thread(target=worker, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(result.computed_rows for part in found for result in part) == 36
    for results in zip(*found, strict=True):
        assert any(result.is_complete for result in results)
    assert files(tmp_path / "shared") == files(tmp_path / "whole")


HOLD = """
import sys, time
from pathlib import Path
from clinit.files.lock import claim_file
with claim_file(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("held", "match"), [("part-1-of-2", "another process is writing"), ("part-3-of-3", "in common")]
)
def test_a_part_that_another_process_extracts_is_refused(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path, held: str, match: str
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    (out / "train").mkdir(parents=True)
    command = [sys.executable, "-c", HOLD, str(out / "train" / held)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(ClinitError, match=match):
            work(root, out, config, Part(1, 2))
        process.kill()
    draft = out / "train" / f".{shard_name(0)}.tmp-0123456789abcdef"
    other = out / "train" / f".{shard_name(1)}.tmp-0123456789abcdef"
    draft.touch()
    other.touch()
    work(root, out, config, Part(1, 2))
    assert not draft.exists()
    assert other.exists(), "it is of another part, which may be running"


def test_a_part_of_a_complete_cache_does_not_answer_for_other_parts(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, out = make_tree(classes="a", train=5, val=1), tmp_path / "cache"
    assert [each.computed_rows for each in work(root, out, config, Part(4, 4))] == [0, 0]
    work(root, out, config)
    (result, _) = work(root, out, config, Part(1, 2))
    assert (result.is_complete, result.part) == (True, Part(1, 2))
    (out / "train" / shard_name(1)).unlink()
    (result, _) = work(root, out, config, Part(1, 2))
    assert (result.is_complete, result.shards_there, result.computed_rows) == (False, 2, 0)


def test_a_damaged_shard_of_another_part_is_left_to_it(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, out = make_tree(), tmp_path / "parts"
    work(root, tmp_path / "whole", config)
    work(root, out, config, Part(2, 2))
    (out / "train" / shard_name(1)).write_bytes(b"half of a shard")
    (train, val) = work(root, out, config, Part(1, 2))
    assert (train.is_complete, train.computed_rows) == (False, 8)
    assert shard_name(1) in train.problem
    assert val.is_complete, "it goes on with the other split"
    (train, _) = work(root, out, config, Part(2, 2))
    assert train.computed_rows == 2
    assert files(out) == files(tmp_path / "whole")


def test_names_that_are_given_while_another_process_runs_stay(
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
