"""A repair leaves the rows of the head the names that they had, or does nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clinit.errors import ClinitError
from clinit.extract.backbone import BackboneConfig
from clinit.extract.cache import open_cache
from clinit.extract.head import read_head
from clinit.extract.run import ExtractConfig, extract
from clinit.extract.scan import scan
from tests.extract.repair.damage import contents, halve, mend

Extracted = Callable[..., Path]
NAMES = ("x", "y", "z")


@pytest.fixture
def extracted(
    tiny_weights: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Extracted:
    """Return a command that extracts, in a folder of its own, with names of the head's rows."""
    (tmp_path / "names.txt").write_text("x\ny\nz\n")
    monkeypatch.chdir(tmp_path)
    args = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}
    backbone = BackboneConfig(name="convnextv2_atto", weights=tiny_weights, model_args=args)
    config = ExtractConfig(backbone=backbone, input_size=32, batch_size=4, shard_rows=6)
    root = whole.parent / "images"

    def extracted(head_classes: str | None, *splits: str) -> Path:
        manifests = {split: scan("folder", root, split).manifest for split in splits or ("val",)}
        named = replace(config, head_classes=head_classes)
        list(extract(manifests, root, tmp_path / "cache", named))
        return tmp_path / "cache"

    return extracted


def names_in(cache: Path) -> tuple[str, ...] | None:
    return read_head(cache / "head.safetensors").class_names


def test_a_damaged_shard_does_not_rename_the_rows_of_a_whole_head(
    extracted: Extracted, tmp_path: Path
) -> None:
    cache = extracted("names.txt")
    before = contents(cache)
    (tmp_path / "names.txt").unlink()  # the head itself says what it was
    halve(cache / "val" / "shard-00000.h5")
    mend(cache)
    assert names_in(cache) == NAMES
    head = Path("head.safetensors")
    assert contents(cache)[head] == before[head]


def test_a_file_in_the_working_folder_names_a_damaged_head_from_anywhere(
    extracted: Extracted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = extracted("names.txt")
    halve(cache / "head.safetensors")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    mend(cache)
    assert names_in(cache) == NAMES


@pytest.mark.parametrize("gone", [False, True])
def test_a_damaged_head_is_not_named_by_another_file_than_before(
    extracted: Extracted, tmp_path: Path, gone: bool
) -> None:
    cache = extracted("names.txt")
    halve(cache / "head.safetensors")
    before = contents(cache)
    (tmp_path / "names.txt").unlink() if gone else (tmp_path / "names.txt").write_text("p\nq\nr\n")
    told = "where nothing is now" if gone else "which is another file now: SHA-256"
    with pytest.raises(ClinitError, match=f"named by {tmp_path}/names.txt, {told}") as caught:
        mend(cache)
    assert "`--head-classes`" in caught.value.remedy
    assert contents(cache) == before


def test_a_damaged_head_keeps_the_names_of_the_data_set_and_of_the_weights(
    extracted: Extracted,
) -> None:
    for choice in ("dataset", None):
        cache = extracted(choice)
        before = contents(cache)
        halve(cache / "head.safetensors")
        mend(cache)
        head = Path("head.safetensors")
        assert contents(cache)[head][1] == before[head][1]


def test_a_damaged_head_that_an_earlier_command_has_named_is_not_guessed(
    extracted: Extracted, edit_document: Callable[..., None]
) -> None:
    cache = extracted("dataset")
    told = {"correct": 0, "total": 6}
    tensors = judged_head(cache)
    for source in ("named by an earlier command", "names.txt"):  # of a version without the file
        edit_document(
            cache / "val" / "cache.json", head=told | {"class_names": source, "tensors": tensors}
        )
        halve(cache / "head.safetensors")
        with pytest.raises(ClinitError, match="nothing whole there says how its rows") as caught:
            mend(cache)
        assert "`clinit extract`" in caught.value.remedy
        assert "`--head-classes`" in caught.value.remedy


def test_names_that_are_not_those_of_the_summary_are_refused(
    extracted: Extracted, edit_document: Callable[..., None]
) -> None:
    cache = extracted("dataset")
    facts = {"correct": 0, "total": 6, "tensors": judged_head(cache), "names": "0" * 64}
    edit_document(
        cache / "val" / "cache.json", head=facts | {"class_names": "the classes of the data set"}
    )
    halve(cache / "head.safetensors")
    with pytest.raises(ClinitError, match="nothing whole there says how its rows"):
        mend(cache)


def test_a_damaged_head_that_two_commands_have_named_differently_is_not_guessed(
    extracted: Extracted,
) -> None:
    extracted("names.txt", "train")
    cache = extracted("dataset", "val")
    halve(cache / "head.safetensors")
    with pytest.raises(ClinitError, match="nothing whole there says how its rows"):
        mend(cache)


def judged_head(cache: Path) -> str | None:
    return open_cache(cache).split("val").summary.head.tensors
