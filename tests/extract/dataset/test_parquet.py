"""Parquet files of images: which columns count, and which labels they hold."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from clinit.errors import ManifestError, StorageError
from clinit.extract.dataset.known import AS_TOLD, ColumnNames
from clinit.extract.dataset.parquet import index_parquet
from tests.extract.dataset.made import make_parquet

IMAGE, LABEL = {"_type": "Image"}, {"_type": "ClassLabel", "names": ["ant", "bee"]}
NAMED = ("ant", "bee")


def table(path: Path, columns: dict[str, Any], features: dict[str, Any]) -> Path:
    told = {"huggingface": json.dumps({"info": {"features": features}})}
    pl.DataFrame(columns).write_parquet(path / "x.parquet", metadata=told)
    return path / "x.parquet"


@pytest.mark.parametrize(
    ("columns", "given", "features", "image", "labels", "names"),
    [
        ({"png": [b"1"], "label": [0]}, AS_TOLD, {}, "png", (0, None), None),
        (
            {"thumbnail": [b"0"], "image": [b"1"], "class": ["ant"]},
            *(AS_TOLD, {}, "image", (None, "ant"), None),
        ),
        ({"a": [b"1"], "target": [7], "label": [1]}, AS_TOLD, {}, "a", (1, None), None),
        ({"pixels": [{"bytes": b"1"}], "cls": [0]}, AS_TOLD, {}, "pixels", (0, None), None),
        (
            {"a": [b"1"], "b": [b"2"], "c": [0], "label": [1]},
            *(AS_TOLD, {"b": IMAGE, "c": LABEL}, "b", (0, None), NAMED),
        ),
        (
            {"image": [b"1"], "b": [b"2"], "label": [0], "d": [1]},
            *(ColumnNames("b", "d"), {"image": IMAGE, "label": LABEL}, "b", (1, None), None),
        ),
        (
            {"image": [b"1"], "label": [0], "boxes": [[[1, 2], [3]]]},
            *(AS_TOLD, {}, "image", (0, None), None),
        ),
    ],
)
def test_columns_are_those_that_are_given_described_named_or_fit(
    tmp_path: Path,
    columns: dict[str, Any],
    given: ColumnNames,
    features: dict[str, Any],
    image: str,
    labels: tuple[int | None, str | None],
    names: tuple[str, ...] | None,
) -> None:
    found = index_parquet(table(tmp_path, columns, features), given)
    assert (found.column, found.class_names) == (image, names)
    assert found.table.rows() == [("0", 0, 0, *labels)]


def test_the_metadata_of_hugging_face_say_columns_and_classes(tmp_path: Path) -> None:
    path = make_parquet(tmp_path / "x.parquet", [b"1", b"2"], [1, 0], names=["ant", "bee"])
    found = index_parquet(path, AS_TOLD)
    assert (found.column, found.class_names) == ("image", NAMED)
    assert found.table.select("position", "index").rows() == [(0, 1), (1, 0)]


@pytest.mark.parametrize(
    "told", ["{", "[]", '{"info": 1}', '{"info": {"features": []}}', "[" * 9_999]
)
def test_a_description_that_is_none_is_not_taken(tmp_path: Path, told: str) -> None:
    path, metadata = tmp_path / "x.parquet", {"huggingface": told}
    pl.DataFrame({"image": [b"1"], "label": [0]}).write_parquet(path, metadata=metadata)
    assert index_parquet(path, AS_TOLD).class_names is None


FINE = {"image": [b"1"], "label": [0]}
TWO = {"image": [b"1"], "fine": [0], "coarse": [0]}


@pytest.mark.parametrize(
    ("columns", "given", "features", "fact"),
    [
        ({"a": [b"1"], "b": [b"1"], "label": [0]}, AS_TOLD, {}, "a, b are possible"),
        ({"a": [1], "label": [0]}, AS_TOLD, {}, "column of images in"),
        (TWO, AS_TOLD, {"fine": LABEL, "coarse": LABEL}, "fine, coarse are possible"),
        ({"image": [b"1"], "a": [0]}, AS_TOLD, {}, "column of labels in"),
        (FINE, ColumnNames("picture"), {}, "no column 'picture'; its columns are image, label"),
        (FINE, ColumnNames(label="kind"), {}, "no column 'kind'"),
        (FINE, ColumnNames("label"), {}, "no images in 'label'"),
        ({"image": [b"1"], "label": [0.5]}, AS_TOLD, {}, "contains Float64"),
    ],
)
def test_columns_that_are_not_clear_are_asked_for(
    tmp_path: Path, columns: dict[str, Any], given: ColumnNames, features: dict[str, Any], fact: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        index_parquet(table(tmp_path, columns, features), given)
    assert fact in str(caught.value)
    assert "-column`" in caught.value.remedy


@pytest.mark.parametrize("kept", [0, 4, 300, -20])
def test_what_is_no_parquet_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = make_parquet(tmp_path / "x.parquet", [b"1" * 1000], [0])
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ManifestError, match=r"x\.parquet cannot be read as a Parquet file"):
        index_parquet(path, AS_TOLD)
    with pytest.raises(StorageError, match="No such file"):
        index_parquet(tmp_path / "absent.parquet", AS_TOLD)
