"""docs/formats.md: what it says of a record is what records are."""

import re
from pathlib import Path
from typing import get_type_hints

import pytest

from clinit.headtrain.protocol.record import format as record
from clinit.headtrain.protocol.record.info import DOCUMENT, RunInfo, StartInfo, TaskInfo
from clinit.headtrain.protocol.train.task_start import PHASES

PAGE = (Path(__file__).parents[3] / "docs" / "formats.md").read_text(encoding="utf-8")


def rows_below(heading: str) -> list[list[str]]:
    """The cells of the first table below a line."""
    lines = PAGE[PAGE.index(heading) :].splitlines()
    start, rows = next(index for index, line in enumerate(lines) if line.startswith("|")), []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows[2:]


def names_below(heading: str) -> list[str]:
    return [name for row in rows_below(heading) for name in re.findall(r"`(\w+)`", row[0])]


def test_every_table_has_a_section() -> None:
    assert re.findall(r"^### `(\w+)\.parquet`$", PAGE, re.M) == list(record.TABLES)


@pytest.mark.parametrize("name", record.TABLES)
def test_the_columns_are_those_of_the_table(name: str) -> None:
    told = {row[0].strip("`"): row[1] for row in rows_below(f"## `{record.table_file(name)}`")}
    assert told == {column: str(dtype) for column, dtype in record.TABLES[name].items()}
    for column, _, meaning in rows_below(f"## `{record.table_file(name)}`"):
        assert ("earlier versions" in meaning) == (
            record.LATER_COLUMNS.get(name) == column.strip("`")
        )
        assert meaning


def test_the_files_are_those_of_a_record() -> None:
    told = [row[0].strip("`") for row in rows_below("| file | content |")]
    assert sorted(told) == sorted(
        [record.INFO, record.STUDY, record.HEAD, record.TOP, *map(record.table_file, record.TABLES)]
    )


def test_the_fields_of_run_json_are_those_that_are_read_and_its_seal() -> None:
    assert sorted(names_below("## `run.json`")) == sorted(
        [*get_type_hints(RunInfo), "format", "sha256"]
    )
    assert sorted(names_below("| field of a task |")) == sorted(get_type_hints(TaskInfo))
    assert sorted(names_below("| field of an initialisation |")) == sorted(
        [*get_type_hints(StartInfo), *(f"{phase}_s" for phase in PHASES)]
    )


def test_the_versions_of_the_format_are_those_that_are_read() -> None:
    assert re.findall(r"\*\*`(clinit-run/\d+)`\*\*", PAGE) == [DOCUMENT.format, *DOCUMENT.older]
