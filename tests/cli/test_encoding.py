from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clinit.cli.console import likeness, replace_what_cannot_be_printed

OUTPUTS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        ("↑↓→×±λ…", "^v->x~lambda..."),
        ("┌─┐│└┘┼━┃╭╮", "+-+|+++-|++"),
        ("▁▂▃▄▅▆▇█", "12345678"),
        ("éñ½ﬁ", "en12fi"),
        ("日本😀", "???"),
        ("\udcff\ud800\x9b\u202e", r"\xff\ud800\x9b\u202e"),
    ],
)
def test_a_character_is_replaced_by_its_likeness(letters: str, expected: str) -> None:
    assert "".join(map(likeness, letters)) == expected


def test_streams_replace_what_they_lack_and_keep_what_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding="latin-1", errors="strict")
    monkeypatch.setattr("sys.stdout", stream)
    replace_what_cannot_be_printed()
    stream.write("é ± → \udcff")
    stream.flush()
    assert content.getvalue() == b"\xe9 \xb1 -> \\xff"


def answers(environment: dict[str, str], *words: str | Path) -> tuple[int, bytes, bytes]:
    done = subprocess.run(
        [sys.executable, "-m", "clinit", *map(str, words)],
        capture_output=True,
        env={**os.environ, **environment},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("output", OUTPUTS)
def test_a_report_with_curves_is_given_in_any_encoding(output: str, tiny_run: Path) -> None:
    code, out, err = answers(OUTPUTS[output], "report", tiny_run)
    assert (code, err) == (0, b"")
    known = out.decode("latin-1" if output == "latin-1" else "ascii")
    assert "least-square" in known
    assert "ooo least-square" in known
    assert known.count("|") > 20  # the frame of the curves
    assert known.count("%^") > 3  # higher is better
    assert "%v" in known


@pytest.mark.slow
def test_names_in_another_encoding_are_shown_and_the_exit_code_stays(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\x9b")
    for environment in ({"PYTHONIOENCODING": "utf-8"}, *OUTPUTS.values()):
        code, out, err = answers(environment, "cache", "show", path)
        assert (code, out) == (1, b"")
        assert b"/caf\\xe9\\x9b\n" in err
