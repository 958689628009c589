from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from clinit.errors import ManifestError, StorageError
from clinit.extract.arrays.parquet_files import ParquetFile
from clinit.extract.dataset.known import AS_TOLD, Columns
from clinit.extract.dataset.parquet import (
    ParquetTable,
    count_rows,
    inspect_parquet,
    parquet_schema,
    read_labels,
    scan_parquet,
)
from tests.extract.dataset.made import make_parquet

IMAGE, LABEL = {"_type": "Image"}, {"_type": "ClassLabel", "names": ["ant", "bee"]}


def table(path: Path, columns: dict[str, Any], **schema: Any) -> Path:
    pl.DataFrame(columns, schema_overrides=schema).write_parquet(path / "x.parquet")
    return path / "x.parquet"


def test_the_metadata_of_hugging_face_say_columns_and_classes(tmp_path: Path) -> None:
    path = make_parquet(tmp_path / "x.parquet", [b"1", b"2"], [1, 0], names=["ant", "bee"])
    found = inspect_parquet(path, AS_TOLD, {})
    assert found == ParquetTable(2, "image", "label", ("ant", "bee"))
    assert read_labels(path, found).rows() == [(1, None), (0, None)]


@pytest.mark.parametrize(
    ("columns", "image", "label"),
    [
        ({"png": [b"1"], "label": [0]}, "png", "label"),
        ({"thumbnail": [b"0"], "image": [b"1"], "class": ["ant"]}, "image", "class"),
        ({"only": [b"1"], "target": [0], "label": [1]}, "only", "label"),
        ({"pixels": [{"bytes": b"1"}], "cls": [0]}, "pixels", "cls"),
    ],
)
def test_columns_without_a_description_are_found_by_name_and_type(
    tmp_path: Path, columns: dict[str, Any], image: str, label: str
) -> None:
    found = inspect_parquet(table(tmp_path, columns), AS_TOLD, {})
    assert (found.image, found.label, found.class_names) == (image, label, None)


def test_a_description_beside_the_file_counts_where_it_has_none(tmp_path: Path) -> None:
    path = table(tmp_path, {"a": [b"1"], "b": [b"2"], "c": [0], "label": [1]})
    found = inspect_parquet(path, AS_TOLD, {"b": IMAGE, "c": LABEL})
    assert found == ParquetTable(1, "b", "c", ("ant", "bee"))


def test_what_the_user_says_comes_first(tmp_path: Path) -> None:
    path = table(tmp_path, {"image": [b"1"], "b": [b"2"], "label": [0], "d": [1]})
    found = inspect_parquet(path, Columns("b", "d"), {"image": IMAGE, "label": LABEL})
    assert found == ParquetTable(1, "b", "d", None)


@pytest.mark.parametrize(
    ("columns", "features", "problem"),
    [
        (
            {"a": [b"1"], "b": [b"1"], "label": [0]},
            {},
            "holds the images is not clear: a, b could be; its columns are a, b, label",
        ),
        ({"a": [1], "label": [0]}, {}, "holds the images is not clear: no column seems to be"),
        (
            {"image": [b"1"], "fine": [0], "coarse": [0]},
            {"fine": LABEL, "coarse": LABEL},
            "holds the labels is not clear: fine, coarse could be",
        ),
        ({"image": [b"1"], "a": [0]}, {}, "holds the labels is not clear: no column seems to be"),
    ],
)
def test_columns_that_are_not_clear_are_asked_for(
    tmp_path: Path, columns: dict[str, Any], features: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        inspect_parquet(table(tmp_path, columns), AS_TOLD, features)
    assert problem in str(caught.value)
    assert "-column` of `clinit manifest build`" in caught.value.remedy


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (Columns("picture"), "has no column 'picture', but image, label"),
        (Columns(label="kind"), "has no column 'kind', but image, label"),
        (Columns("label"), "the column 'label' of .* holds Int64, expected the content of image"),
    ],
)
def test_columns_that_are_not_there_are_refused(
    tmp_path: Path, columns: Columns, problem: str
) -> None:
    path = make_parquet(tmp_path / "x.parquet", [b"1"], [0])
    with pytest.raises(ManifestError, match=problem):
        inspect_parquet(path, columns, {})


@pytest.mark.parametrize(
    ("labels", "rows"),
    [
        (pl.Series([1, None], dtype=pl.UInt8), [(1, None), (None, None)]),
        (pl.Series(["b", None]), [(None, "b"), (None, None)]),
        (pl.Series(["b", "a"], dtype=pl.Categorical), [(None, "b"), (None, "a")]),
        (pl.Series([2**63, 1], dtype=pl.UInt64), [(None, None), (1, None)]),
    ],
)
def test_labels_are_integers_or_texts(
    tmp_path: Path, labels: pl.Series, rows: list[tuple[int | None, str | None]]
) -> None:
    path = table(tmp_path, {"image": [b"1", b"2"], "label": labels})
    assert read_labels(path, inspect_parquet(path, AS_TOLD, {})).rows() == rows


def test_labels_of_another_type_are_refused(tmp_path: Path) -> None:
    path = table(tmp_path, {"image": [b"1"], "label": [0.5]})
    with pytest.raises(ManifestError, match="holds Float64, expected integers or texts") as caught:
        read_labels(path, inspect_parquet(path, AS_TOLD, {}))
    assert "--label-column" in caught.value.remedy


def test_columns_of_lists_beside_the_images_do_not_matter(tmp_path: Path) -> None:
    path = table(tmp_path, {"image": [b"1"], "label": [0], "boxes": [[[1, 2], [3]]]})
    assert inspect_parquet(path, AS_TOLD, {}).rows == 1
    assert count_rows(path, "image") == 1


def test_a_description_that_is_none_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    for told in ("{", "[]", '{"info": 1}', '{"info": {"features": []}}', "[" * 10_000):
        pl.DataFrame({"image": [b"1"], "label": [0]}).write_parquet(
            path, metadata={"huggingface": told}
        )
        assert inspect_parquet(path, AS_TOLD, {}).class_names is None


def test_what_is_no_parquet_file_is_refused(tmp_path: Path) -> None:
    path = make_parquet(tmp_path / "x.parquet", [b"1" * 1000], [0])
    whole = path.read_bytes()
    for content in (b"", b"PAR1", whole[:-20], whole[: len(whole) // 2], b"x" * 100):
        path.write_bytes(content)
        for read in (lambda: inspect_parquet(path, AS_TOLD, {}), lambda: count_rows(path, "image")):
            with pytest.raises(ManifestError, match=r"x\.parquet cannot be read as a Parquet file"):
                read()


def test_a_file_that_is_absent_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot read .*x\.parquet: No such file"):
        inspect_parquet(tmp_path / "x.parquet", AS_TOLD, {})


def test_a_column_that_holds_no_images_is_not_read(tmp_path: Path) -> None:
    path = make_parquet(tmp_path / "x.parquet", [b"1"], [0])
    for column in ("label", "absent"):
        with pytest.raises(ManifestError, match=f"it has no column '{column}' of images"):
            count_rows(path, column)


NAMES = ("train-[0].parquet", "train-?.parquet", "train-*.parquet", "data[1]/x.parquet")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_looks_like_a_pattern_is_that_of_one_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    pl.DataFrame({"other": [1.5, 2.5]}).write_parquet(tmp_path / "train-0.parquet")
    pl.DataFrame({"mine": [7]}).write_parquet(path, metadata={"class_names": '["a"]'})
    assert parquet_schema(path) == {"mine": pl.Int64}
    assert scan_parquet(path).collect().rows() == [(7,)]
    assert ParquetFile(path).names() == ("mine",)
    assert ParquetFile(path).class_names() == ("a",)


def test_a_folder_like_label_is_no_column(tmp_path: Path) -> None:
    path = tmp_path / "label=3" / "x.parquet"
    path.parent.mkdir()
    pl.DataFrame({"mine": [7]}).write_parquet(path)
    assert scan_parquet(path).collect().columns == ["mine"]
