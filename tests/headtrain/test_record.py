from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from clinit.errors import RecordError
from clinit.extract.head import Head
from clinit.headtrain.record import (
    TABLES,
    RunRecord,
    check_free,
    final_head,
    find_records,
    read_record,
    write_record,
    write_records,
)

HEAD = Head(np.eye(2, 3, dtype=np.float32), np.ones(2, np.float32), ("cat", "dog"), "abc")


def make_record(**info: Any) -> RunRecord:
    def table(name: str) -> pl.DataFrame:
        rows = {column: ["0"] * 3 for column in TABLES[name]}
        return pl.DataFrame(rows).cast(dict(TABLES[name]))  # type: ignore[arg-type]

    return RunRecord(
        path=None,
        info={"format": "clinit-run/1", "id": "random", **info},
        **cast(dict[str, Any], {name: table(name) for name in TABLES}),
    )


def test_a_record_reads_as_it_was_written(tmp_path: Path) -> None:
    record = make_record(notes=["größer [b]"])
    write_record(record, tmp_path / "runs" / "random")
    read = read_record(tmp_path / "runs" / "random")
    assert read.path == tmp_path / "runs" / "random"
    assert read.info == record.info
    for name in TABLES:
        assert getattr(read, name).equals(getattr(record, name))


def test_numbers_that_json_does_not_know_are_null(tmp_path: Path) -> None:
    values = {"nc1": float("nan"), "all": [float("inf"), 1.5], "factor": -float("inf")}
    write_record(make_record(tasks=[values]), tmp_path / "random")
    expected = {"nc1": None, "all": [None, 1.5], "factor": None}
    assert read_record(tmp_path / "random").info["tasks"] == [expected]


def test_a_record_in_a_folder_with_brackets_is_read(tmp_path: Path) -> None:
    write_record(make_record(), tmp_path / "runs [old]" / "random")
    assert read_record(tmp_path / "runs [old]" / "random").info["id"] == "random"


def test_records_are_found_at_and_below_a_folder_and_drafts_are_not(tmp_path: Path) -> None:
    for name in ("b", "a/deep", ".c.tmp-1"):
        write_record(make_record(), tmp_path / name)
    assert find_records(tmp_path) == [tmp_path / "a" / "deep", tmp_path / "b"]
    assert find_records(tmp_path / "b") == [tmp_path / "b"]


def test_an_existing_record_is_never_overwritten(tmp_path: Path) -> None:
    write_record(make_record(id="first"), tmp_path / "random")
    message = re.escape(f"there is already something at {tmp_path / 'random'}")
    with pytest.raises(RecordError, match=message) as caught:
        write_record(make_record(id="second"), tmp_path / "random")
    assert caught.value.remedy == "Choose another --out, or remove the old record first."
    assert read_record(tmp_path / "random").info["id"] == "first"
    with pytest.raises(RecordError, match=r"already something at .*random"):
        check_free([tmp_path / "other", tmp_path / "random"])


def test_a_folder_below_a_file_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(RecordError, match="runs is not a folder you can write to"):
        check_free([tmp_path / "runs" / "random"])


def test_a_full_disk_leaves_no_half_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("clinit.headtrain.record.flush_file", full)
    with pytest.raises(RecordError, match=r"cannot write .*random: No space left on device"):
        write_record(make_record(), tmp_path / "random")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_at_the_head_leaves_no_half_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    record = replace(make_record(), head=HEAD)
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(RecordError, match="random: No space left on device"):
        write_record(record, tmp_path / "random")
    assert list(tmp_path.iterdir()) == []


def test_the_final_head_is_stored_beside_the_tables(tmp_path: Path) -> None:
    write_record(replace(make_record(), head=HEAD), tmp_path / "random")
    head = final_head(tmp_path / "random")
    assert head.class_names == HEAD.class_names
    assert (head.weight == HEAD.weight).all()
    assert read_record(tmp_path / "random").info["id"] == "random"


def test_a_record_without_a_head_is_read_and_its_head_is_missed_by_name(tmp_path: Path) -> None:
    write_record(make_record(), tmp_path / "random")
    assert read_record(tmp_path / "random").head is None
    with pytest.raises(RecordError, match=r"random holds no head\.safetensors") as caught:
        final_head(tmp_path / "random")
    assert "clinit train-head" in caught.value.remedy


def test_a_record_that_cannot_be_written_does_not_stop_the_others(tmp_path: Path) -> None:
    names = ("one", "two", "three")
    (tmp_path / "two").touch()
    with pytest.raises(RecordError, match=r"two: .*; 1 of 3 runs are not recorded"):
        write_records([make_record()] * 3, [tmp_path / name for name in names])
    assert find_records(tmp_path) == [tmp_path / "one", tmp_path / "three"]


def test_an_interrupted_write_leaves_no_half_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clinit.headtrain.record.flush_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_record(make_record(), tmp_path / "random")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=re.escape(f"no run record at {tmp_path}")):
        read_record(tmp_path)


def test_another_layout_is_refused_with_both_names(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"format": "clinit-run/9"}))
    with pytest.raises(RecordError, match="of the layout 'clinit-run/9', expected 'clinit-run/1'"):
        read_record(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_damaged_run_json_is_reported(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(RecordError, match=r"cannot read .*run.json"):
        read_record(tmp_path)


def test_a_missing_a_damaged_and_a_foreign_table_are_reported(tmp_path: Path) -> None:
    write_record(make_record(), tmp_path / "random")
    steps = tmp_path / "random" / "steps.parquet"
    pl.DataFrame({"task": [1]}).write_parquet(steps)
    with pytest.raises(RecordError, match=r"steps.parquet has the columns task, expected task, it"):
        read_record(tmp_path / "random")
    steps.write_bytes(b"PAR1")
    with pytest.raises(RecordError, match=r"cannot read .*steps.parquet"):
        read_record(tmp_path / "random")
    steps.unlink()
    with pytest.raises(RecordError, match=r"cannot read .*steps.parquet"):
        read_record(tmp_path / "random")
