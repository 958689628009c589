"""docs/record.md: what it says of a record is what records are."""

import ast
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from clinit.analysis.report.run import RunSummary
from clinit.headtrain.record.format import HEAD, INFO, STUDY, TOP, RunRecord
from clinit.headtrain.record.info import DOCUMENT, RunInfo, StartInfo, TaskInfo
from clinit.headtrain.record.tables import LATER_COLUMNS, TABLES, table_file
from clinit.headtrain.start.task_start import PHASES

PAGE = (Path(__file__).parents[3] / "docs" / "record.md").read_text(encoding="utf-8")
MakeRun = Callable[..., RunRecord]
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def rows_below(heading: str) -> list[list[str]]:
    """The cells of the first table below a line."""
    lines = PAGE[PAGE.index(heading) :].splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows[2:]


def names_below(heading: str) -> list[str]:
    return [name for row in rows_below(heading) for name in re.findall(r"`(\w+)`", row[0])]


def test_every_table_has_a_section() -> None:
    sections = re.findall(r"^## `(\w+)\.parquet`$", PAGE, re.M)
    assert sections == list(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_the_columns_are_those_of_the_table(name: str) -> None:
    told = {row[0].strip("`"): row[1] for row in rows_below(f"## `{table_file(name)}`")}
    assert told == {column: str(dtype) for column, dtype in TABLES[name].items()}
    for column, _, null, meaning in rows_below(f"## `{table_file(name)}`"):
        assert (null == "older") == (LATER_COLUMNS.get(name) == column.strip("`"))
        assert null in ("yes", "no", "older")
        assert meaning


def test_the_files_are_those_of_a_record() -> None:
    told = [row[0].strip("`") for row in rows_below("| file | holds |")]
    assert sorted(told) == sorted([INFO, STUDY, HEAD, TOP, *map(table_file, TABLES)])


def test_the_fields_of_run_json_are_those_that_are_read_and_its_seal() -> None:
    assert sorted(names_below("## `run.json`")) == sorted(
        [*get_type_hints(RunInfo), "format", "sha256"]
    )
    assert sorted(names_below("| field of a task |")) == sorted(get_type_hints(TaskInfo))
    assert sorted(names_below("| field of an initialisation |")) == sorted(
        [*get_type_hints(StartInfo), *(f"{phase}_s" for phase in PHASES)]
    )


def test_the_versions_of_the_format_are_those_that_are_read() -> None:
    told = re.findall(r"\*\*`(clinit-run/\d+)`\*\*", PAGE)
    assert told == [DOCUMENT.format, *DOCUMENT.older]


@pytest.fixture
def example(
    make_run: MakeRun,
    write_runs: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], Any]:
    """Run the example that ends in a name, over a record; return what it computes."""
    write_runs(make_run("random", iterations=60, every=20), make_run("least-square"))
    monkeypatch.chdir(tmp_path)

    def run(result: str) -> Any:
        (code,) = (code for code in EXAMPLES if f"\n{result} = " in code)
        assert len(ast.parse(code).body) <= 5
        names: dict[str, Any] = {}
        exec(compile(code, "docs/record.md", "exec"), names)
        return names[result]

    return run


def test_the_example_of_accuracies_gives_those_of_the_report(
    example: Callable[[str], Any], make_run: MakeRun
) -> None:
    expected = RunSummary.of(make_run("random", iterations=60, every=20)).points
    assert example("acc_new").equals(expected.select("task", "iteration", "acc_new"))


def test_the_example_of_confusions_counts_pairs(
    example: Callable[[str], Any], make_run: MakeRun
) -> None:
    record = make_run("random", iterations=60, every=20)
    assert record.mistakes is not None
    names = dict(record.classes.select("row", "name").iter_rows())
    counts = Counter(
        (names[row], names[predicted])
        for task, row, _, predicted in record.mistakes.iter_rows()
        if task == 3
    )
    found = {(name, taken): number for name, taken, number in example("confusions").iter_rows()}
    assert found == dict(counts)
    assert example("confusions")["len"].is_sorted(descending=True)
