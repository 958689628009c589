from pathlib import Path

import polars as pl
import pytest

from clinit.extract.arrays.parquet_files import ParquetFile
from clinit.extract.dataset.parquet import parquet_schema, scan_parquet

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
