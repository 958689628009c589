import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from clinit.errors import RecordError
from clinit.extract.cache.head import Head
from clinit.headtrain.protocol.record import format as records
from clinit.headtrain.protocol.study.rules import settings_of
from clinit.headtrain.protocol.study.study import Study

HEAD = Head(np.eye(2, 3, dtype=np.float32), np.ones(2, np.float32), ("cat", "dog"), "abc")


def make_record(**info: Any) -> records.RunRecord:
    """Make a record of two base classes and two tasks of one class, three updates each."""

    def table(name: str, rows: list[tuple[object, ...]]) -> pl.DataFrame:
        return pl.DataFrame(rows, schema=dict(records.TABLES[name]), orient="row")

    points = [(task, iteration) for task in (1, 2) for iteration in (0, 2, 3)]
    updates = [(task, step) for task in (1, 2) for step in range(3)]
    tested = [(task, 1, row) for task in (1, 2) for row in range(2 + task)]
    return records.RunRecord(
        path=None,
        info={
            "id": "random",
            "config": {"init": "random", "tasks": 2, "seed": 0},
            "base": {"path": "caches/base", "fingerprint": {"weights": "a"}},
            "new": {"path": "caches/new", "fingerprint": {"weights": "a"}},
            "tasks": [{"task": 1}, {"task": 2}],
            **info,
        },
        classes=table("classes", [(row, f"c{row}", max(0, row - 1), 9, 5) for row in range(4)]),
        steps=table("steps", [(*update, 1.0, 1.0, None) for update in updates]),
        evaluations=table(
            "evaluations",
            [(*point, row, row, 5, row + 1) for point in points for row in range(2 + point[0])],
        ),
        points=table("points", [(*point, 0.5, 0.1) for point in points]),
        mistakes=table(
            "mistakes", [(*each, image, 0) for each in tested for image in range(each[2], 5)]
        ),
    )


def test_a_record_reads_as_it_was_written(tmp_path: Path) -> None:
    record = make_record(notes=["größer [b]"], later=[1, {"a": None}])
    records.write_record(record, tmp_path / "runs [old]" / "random")
    read = records.read_record(tmp_path / "runs [old]" / "random")
    assert read.path == tmp_path / "runs [old]" / "random"
    assert read.info == record.info
    for name in records.TABLES:
        assert getattr(read, name).equals(getattr(record, name))


def test_records_are_found_at_and_below_a_folder_and_drafts_are_not(tmp_path: Path) -> None:
    for name in ("b", "a/deep", ".c.tmp-1"):
        records.write_record(make_record(), tmp_path / name)
    assert records.find_records(tmp_path) == [tmp_path / "a" / "deep", tmp_path / "b"]
    assert records.find_records(tmp_path / "b") == [tmp_path / "b"]


def test_an_existing_record_is_never_overwritten(tmp_path: Path) -> None:
    records.write_record(make_record(id="first"), tmp_path / "random")
    message = re.escape(f"there is already a run record at {tmp_path / 'random'}")
    with pytest.raises(RecordError, match=message) as caught:
        records.write_record(make_record(id="second"), tmp_path / "random")
    assert caught.value.remedy == "Choose another --out, or move it away."
    assert records.read_record(tmp_path / "random").info["id"] == "first"
    with pytest.raises(RecordError, match=r"already a run record at .*random"):
        records.check_free([tmp_path / "other", tmp_path / "random"])


def test_a_write_that_fails_leaves_no_half_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "write_head", full)
    with pytest.raises(RecordError, match=r"cannot write .*random: No space left"):
        records.write_record(replace(make_record(), head=HEAD), tmp_path / "random")
    assert list(tmp_path.iterdir()) == []


def test_a_record_without_a_head_is_read_and_its_head_is_missed_by_name(tmp_path: Path) -> None:
    records.write_record(make_record(), tmp_path / "random")
    assert records.read_record(tmp_path / "random").head is None
    with pytest.raises(RecordError, match=r"random holds no head\.safetensors") as caught:
        records.final_head(records.read_record(tmp_path / "random"))
    assert "clinit train-head" in caught.value.remedy


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no run record at "),
        ('{"format": "clinit-run/9"}', "its format is 'clinit-run/9', expected 'clinit-run/2'"),
        *((content, r"run\.json is damaged: ") for content in ("", "{", "[]")),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(RecordError, match=message):
        records.read_record(tmp_path)


def test_a_missing_a_damaged_and_a_foreign_table_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "random"
    records.write_record(make_record(), folder)
    info = json.loads((folder / "run.json").read_text())
    del info["sha256"], info["files"]  # as earlier versions wrote it
    (folder / "run.json").write_text(json.dumps({**info, "format": "clinit-run/1"}))
    steps = folder / "steps.parquet"
    pl.DataFrame({"task": [1]}).write_parquet(steps)
    with pytest.raises(RecordError, match=r"steps.parquet has the columns task, expected task, it"):
        records.read_record(folder)
    steps.write_bytes(b"PAR1")
    with pytest.raises(RecordError, match=r"steps\.parquet is damaged: it is no table \("):
        records.read_record(folder)
    steps.unlink()
    with pytest.raises(RecordError, match=r"random is damaged: it lacks steps\.parquet"):
        records.read_record(folder)


def everything(folder: Path) -> object:
    record = records.read_record(folder)
    head, top = records.final_head(record), records.changed_parameters(record)
    tables = [getattr(record, name).write_csv() for name in records.TABLES]
    return record.info, tables, head.weight.tolist(), head.class_names, top["w"].tolist()


@pytest.mark.parametrize(
    "name", ["run.json", "classes", "steps", "evaluations", "points", "head", "top"]
)
def test_no_flipped_bit_of_a_record_is_believed(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "random"
    records.write_record(
        replace(make_record(), head=HEAD, top={"w": np.ones(2, np.float32)}), folder
    )
    (path,) = folder.glob(f"{name}*")
    written, random = path.read_bytes(), np.random.default_rng(0)
    reference, said = everything(folder), list[str]()
    for place in random.choice(len(written), 60, replace=False):
        changed = bytearray(written)
        changed[place] ^= 1 << int(random.integers(8))
        path.write_bytes(changed)
        try:
            assert everything(folder) == reference, place
        except RecordError as error:
            said.append(str(error))
    assert all(re.search("is damaged: |is not the record of a run", each) for each in said)


def test_other_files_are_left_alone_and_lost_ones_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "random"
    records.write_record(replace(make_record(), head=HEAD), folder)
    (folder / "thoughts.txt").touch()
    (folder / ".DS_Store").touch()
    assert records.read_record(folder).path == folder
    (folder / "top.safetensors").touch()
    with pytest.raises(RecordError, match=r"top\.safetensors is damaged: it has changed"):
        records.changed_parameters(records.read_record(folder))
    (folder / "top.safetensors").unlink()
    (folder / "head.safetensors").unlink()
    with pytest.raises(RecordError, match=r"random is damaged: it lacks head\.safetensors"):
        records.final_head(records.read_record(folder))


def test_a_record_without_run_json_is_not_passed_over(tmp_path: Path) -> None:
    for name in ("one", "other"):
        records.write_record(make_record(), tmp_path / name)
    (tmp_path / "one" / "run.json").unlink()
    with pytest.raises(RecordError, match=r"one is damaged: its run.json is gone"):
        records.find_records(tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"config": []}, "Expected `object`, got `array` - at `$.config`"),
        ({"config": {"tasks": 2}}, "config has neither `init` nor `method`"),
        ({"new": {"path": "n", "fingerprint": {"a": 1}}}, "at `$.new.fingerprint[...]`"),
        ({"tasks": [{}]}, "field `task` - at `$.tasks[0]`"),
        ({"seconds": -1}, "Expected `int` >= 0 - at `$.seconds`"),
        ({"files": {"steps.parquet": ""}}, "at `$.files[...]`"),
    ],
)
def test_a_wrong_field_is_named(
    tmp_path: Path, edit_document: Callable[..., None], changed: dict[str, Any], message: str
) -> None:
    records.write_record(make_record(seconds=1.0), tmp_path / "random")
    path = tmp_path / "random" / "run.json"
    edit_document(path, **changed)
    with pytest.raises(RecordError) as caught:
        records.read_record(tmp_path / "random")
    assert str(caught.value).startswith(f"{path} is damaged: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("top", "settings"),
    [
        (False, {}),
        (False, {"method": "naive", "init_rows": "buffer", "buffer": 3, "lam": "auto"}),
        (False, {"method": "lda", "weighting": "sample"}),
        (True, {"method": "ewc", "ewc_samples": 9, "lr": 1e-300}),
        (True, {"method": "derpp", "probe": False}),
        (True, {"full_rank": True, "layer_decay": 1.0}),
    ],
)
def test_the_file_says_the_study_again(top: bool, settings: dict[str, Any]) -> None:
    study = Study.of(settings, top=top).resolved()
    (section,) = tomllib.loads(records.study_toml(study)).values()
    by_key = {field.key: name for name, field in settings_of(top=top).items()}
    again = Study.of({by_key[key]: value for key, value in section.items()}, top=top)
    assert again.resolved() == study
