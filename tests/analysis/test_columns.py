import io

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clinit.analysis.report.table import Column, Kind, table_of, width_of


def printed(table: Table, width: int = 40) -> list[str]:
    written = io.StringIO()
    Console(width=width, file=written, color_system=None).print(table)
    return [line.rstrip() for line in written.getvalue().splitlines()]


COLUMNS = [Column("init"), Column("A\n%", "number")]


def test_numbers_stand_to_the_right_and_sections_are_set_apart() -> None:
    table = table_of(COLUMNS, [[["random", "9.50"]], [["zero", "10.50"]]], title="T", caption="C")
    assert printed(table) == [
        *("T", "            A", "init        %", "─────────────"),
        *("random   9.50", "", "zero    10.50", "C"),
    ]


def test_a_frame_is_drawn_where_it_is_asked_for() -> None:
    assert printed(table_of(COLUMNS, [[["zero", "1"]]], is_framed=True)) == [
        *("┏━━━━━━┳━━━┓", "┃      ┃ A ┃", "┃ init ┃ % ┃", "┡━━━━━━╇━━━┩"),
        *("│ zero │ 1 │", "└──────┴───┘"),
    ]


def test_no_column_of_a_frame_that_is_too_wide_vanishes() -> None:
    columns = [Column("class", "text"), *(Column(f"number {n}", "number") for n in range(3))]
    lines = printed(table_of(columns, [[["zero", "1.234", "2.345", "3.456"]]], is_framed=True), 24)
    assert lines[2].startswith("┃ cl")
    assert lines[-2].startswith("│ z")


def test_brackets_in_headings_and_cells_are_shown_as_they_are() -> None:
    table = table_of([Column("[b]"), Column("n")], [[["[red]x", Text("y", "bold")]]])
    assert printed(table) == ["[b]     n", "─────────", "[red]x  y"]


@pytest.mark.parametrize(
    ("kind", "cell", "lines"),
    [
        ("setting", "abc defghij", ["abc      12345678", "defghij"]),
        ("setting", "abcdefghij", ["abcdefg  12345678", "hij"]),
        ("text", "abc defghij", ["abc      12345678", "defghij"]),
        ("text", "abcdefghij", ["abcdef…  12345678"]),
        ("name", "abc defghij", ["abc defg…  12345…"]),
    ],
)
def test_settings_and_texts_give_way_before_names_and_numbers(
    kind: Kind, cell: str, lines: list[str]
) -> None:
    columns = [Column("s", kind), Column("number", "number")]
    assert printed(table_of(columns, [[[cell, "12345678"]]]), width=17)[2:] == lines


def test_the_width_of_a_table_is_that_with_nothing_shortened() -> None:
    table = table_of(COLUMNS, [[["random", "a number of some forty letters, or so it"]]])
    assert width_of(table) == len("random  a number of some forty letters, or so it")
