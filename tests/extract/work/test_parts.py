"""Parts of an extraction: each by itself, at once or killed, with the bits of the whole."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from clinit.errors import CacheError, ClinitError
from clinit.extract.cache.plan import Part, shard_name
from clinit.extract.cache.read import open_split
from clinit.extract.dataset.scan import scan
from clinit.extract.work.run import ExtractConfig
from clinit.extract.work.split_run import SplitResult
from clinit.files.lock import claim_file
from tests.extract.work.made import extracted, files, tiny_config


@pytest.fixture
def config(tiny_weights: Path) -> ExtractConfig:
    return tiny_config(tiny_weights, batch_size=2, shard_rows=2, workers=1)


@pytest.mark.parametrize(("shards", "count"), [(10, 3), (2, 5), (1, 1), (7, 7)])
def test_parts_hold_every_shard_once_and_differ_by_one_at_most(shards: int, count: int) -> None:
    parts = [Part(number, count).shards(shards) for number in range(1, count + 1)]
    assert sorted(shard for part in parts for shard in part) == list(range(shards))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["", "auto", "0/4", "5/4", "1", "1/0", "-1/4", "1/4/4", "a/b"])
def test_what_is_no_part_is_refused(text: str) -> None:
    assert Part.parse("3/4") == Part(3, 4)
    with pytest.raises(ClinitError, match="expected i/n"):
        Part.parse(text)


def test_parts_are_computed_one_by_one_and_the_last_one_completes_the_cache(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, parts = make_tree(), tmp_path / "parts"  # 15 and 6 images: 8 and 3 shards
    for path in scan("folder", root, "train").manifest.table["path"][2:4]:
        Image.new("RGB", (40, 36)).save(root / path)
        (root / path).write_bytes(b"")  # no image of shard 1 can be read
    extracted(root, tmp_path / "whole", config)
    first = extracted(root, parts, config, Part(1, 3))
    assert [result.is_complete for result in first] == [False, False]
    assert [(result.computed_rows, result.shards_there) for result in first] == [(6, 3), (2, 1)]
    with pytest.raises(CacheError, match="contains 3 of 8 shards: its extraction was interrupted"):
        open_split(parts / "train")
    for part, rows in ((Part(1, 3), [0, 0]), (Part(3, 3), [4, 2])):
        assert [each.computed_rows for each in extracted(root, parts, config, part)] == rows
    last = extracted(root, parts, config)
    assert [(result.is_complete, result.computed_rows) for result in last] == [(True, 5), (True, 2)]
    assert files(parts) == files(tmp_path / "whole")


def test_parts_at_once_give_the_bits_of_the_whole(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path
) -> None:
    root, found = make_tree(), list[list[SplitResult]]()
    config = replace(config, views=1)
    extracted(root, tmp_path / "whole", config)
    barrier = threading.Barrier(3)

    def worker(number: int) -> None:
        barrier.wait()
        found.append(extracted(root, tmp_path / "shared", config, Part(number, 3)))

    threads = [threading.Thread(target=worker, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(result.computed_rows for part in found for result in part) == 36
    for results in zip(*found, strict=True):
        assert any(result.is_complete for result in results)
    assert files(tmp_path / "shared") == files(tmp_path / "whole")


@pytest.mark.parametrize(
    ("held", "match"), [("part-1-of-2", "another process is writing"), ("part-3-of-3", "to both")]
)
def test_a_part_that_another_process_extracts_is_refused(
    make_tree: Callable[..., Path], config: ExtractConfig, tmp_path: Path, held: str, match: str
) -> None:
    root, out = make_tree(), tmp_path / "cache"
    (out / "train").mkdir(parents=True)
    with claim_file(out / "train" / held), pytest.raises(ClinitError, match=match):
        extracted(root, out, config, Part(1, 2))
    own, other = (out / "train" / f".{shard_name(n)}.tmp-0123456789abcdef" for n in (0, 1))
    own.touch()
    other.touch()
    extracted(root, out, config, Part(1, 2))
    assert not own.exists()
    assert other.exists(), "it is of another part, which may be running"
