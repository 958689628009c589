"""What is printed: no control character passes, and what an encoding lacks is replaced."""

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.panel import Panel
from rich.segment import Segment
from rich.text import Text

from clinit.cli.frame.console import Console, note, print_csv, print_json, say, warn
from clinit.words import visible
from tests.cli.test_main import run

HOSTILE = "a\x1b]0;EVIL\x07\x9b31m\u202eb\x7f\u2066\r\x08\x00"
SHOWN = r"a\x1b]0;EVIL\x07\x9b31m\u202eb\x7f\u2066\x0d\x08\x00"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What no output may hold; line breaks and tabs may."""


def naive(text: str) -> str:
    """Write out, letter by letter, what a terminal would obey."""
    result = ""
    for letter in text:
        code = ord(letter)
        if code < 0x20 or 0x7F <= code < 0xA0:
            result += f"\\x{code:02x}"
        elif 0x2028 <= code <= 0x202E or 0x2066 <= code <= 0x2069:
            result += f"\\u{code:04x}"
        elif 0xDC80 <= code <= 0xDCFF:
            result += f"\\x{code - 0xDC00:02x}"
        elif 0xD800 <= code <= 0xDFFF:
            result += f"\\u{code:04x}"
        else:
            result += letter
    return result


def test_every_character_is_as_in_a_transcription_of_the_rule() -> None:
    for start in range(0, sys.maxunicode + 1, 256):
        text = "".join(map(chr, range(start, start + 256)))
        assert visible(text) == naive(text), hex(start)
    kept = [chr(code) for code in range(0xA0) if visible(chr(code), lines=True) == chr(code)]
    assert set(kept) - set(map(chr, range(32, 127))) == {"\n", "\t"}


def test_what_is_hostile_is_shown_by_every_way_to_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for way in (say, note, warn):
        way(f"{HOSTILE}\n")
    shown = capsys.readouterr()
    assert shown.out == f"{SHOWN}\\x0a\n"
    assert shown.err == f"Note: {SHOWN}\\x0a\nWarning: {SHOWN}\\x0a\n"


class Bare:
    """A renderable that makes segments without a Text."""

    def __rich_console__(self, *_: object) -> Iterator[Segment]:
        yield Segment(HOSTILE)


@pytest.mark.parametrize(
    "renderable",
    [HOSTILE, Text(HOSTILE), Panel(Text(HOSTILE), title=HOSTILE), Bare()],
    ids=["string", "text", "panel", "segments"],
)
def test_no_renderable_brings_a_control_character_to_the_terminal(renderable: object) -> None:
    file = io.StringIO()
    terminal = Console(file=file, force_terminal=True, width=60, color_system="truecolor")
    terminal.print(renderable, markup=False)
    # The control sequences of rich itself may pass.
    printed = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]|\r", "", file.getvalue())
    assert r"\x1b]0;" in printed
    assert RAW.findall(printed) == []


def test_json_says_the_same_with_escapes_and_holds_no_control_character(
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = {"name": HOSTILE, "other": "é😀\n", "path": "b\udcff"}
    print_json(json.dumps(content, ensure_ascii=False, indent=2))
    text = capsys.readouterr().out
    assert json.loads(text) == content
    assert RAW.findall(text) == []
    assert r"\u009b31m\u202eb\u007f" in text
    assert "é😀" in text


def test_csv_is_shown_on_a_terminal_and_kept_as_it_is_in_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, expected in ((io.StringIO(), "n,\x1b\t\n"), (Screen(), "n,\\x1b\t\n")):
        monkeypatch.setattr("sys.stdout", stream)
        print_csv("n,\x1b\t\n")
        assert stream.getvalue() == expected


FILE = "a\x1b]0;EVIL\x07\x9b31m\u202eb\x7f\r\n"
"""A name that a file can have."""


def test_no_command_prints_a_control_character_of_a_class_or_file_name(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    make_tree: Callable[..., Path],
) -> None:
    root = make_tree(f"images{FILE}")
    (root / "train" / "a").rename(root / "train" / FILE)
    manifest = str(root / "train.parquet")
    words = ["folder", "--root", str(root), "--split", "train", "--out", manifest]
    assert run(monkeypatch, "manifest", "build", *words) == 0
    assert run(monkeypatch, "manifest", "show", manifest) == 0
    shown = capsys.readouterr()
    assert shown.out.count(visible(FILE)) > 10
    assert RAW.findall(shown.out + shown.err) == []
    for command in (["cache", "show"], ["report"], ["predict", manifest], ["manifest", "show"]):
        assert run(monkeypatch, *command, str(root / FILE)) == 1
    assert run(monkeypatch, "extract", "--root", FILE, "--out", FILE, f"--std={FILE}") == 2
    shown = capsys.readouterr()
    assert r"got'a\x1b]0;EVIL\x07\x9b31m\u202eb\x7f" in "".join(shown.err.replace("│", "").split())
    assert RAW.findall(shown.out + shown.err) == []


def test_an_unforeseen_error_is_a_traceback_without_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(name: str) -> str:
        raise ZeroDivisionError(HOSTILE)

    monkeypatch.setattr("clinit.cli.commands.recipe.recipe", fail)
    assert run(monkeypatch, "recipe", "show", "table2-last-layer") == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback (most recent call last):\n")
    assert said.endswith(f"ZeroDivisionError: {SHOWN}\n")
