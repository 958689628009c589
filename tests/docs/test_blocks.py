"""Every block of code of README and pages runs, or says why it does not."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clinit.cli.main import app
from tests.docs.blocks import PAGES, ROOT, Block, all_blocks, is_run
from tests.docs.command_lines import (
    command_lines,
    inline_commands,
    problem,
    unknown,
    words_of,
)

LANGUAGES = {"bash", "bibtex", "console", "diff", "json", "python", "text", "toml"}
BLOCKS = all_blocks()
CHEAP = (("manifest", "list"), ("manifest", "show"), ("recipe", "list"), ("recipe", "show"))
"""Commands that are run wherever they stand, if what they name is part of clinit."""


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages and not block.is_left_out]


def test_every_block_says_its_language() -> None:
    assert [block.place for block in BLOCKS if block.language not in LANGUAGES] == []


def test_every_fence_is_found() -> None:
    for page in {block.page for block in BLOCKS}:
        path = ROOT / page if (ROOT / page).exists() else ROOT / "docs" / page
        fences = len(re.findall(r"^```", path.read_text(encoding="utf-8"), re.MULTILINE))
        assert fences == 2 * sum(block.page == page for block in BLOCKS), page


def test_a_block_that_is_left_out_says_why() -> None:
    for block in BLOCKS:
        if block.is_left_out:
            assert re.fullmatch(r"not run( here)?: \S.{5,}", block.mark), block.place
        else:
            assert re.fullmatch(r"|run|(file|change): \S+", block.mark), block.place


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if is_run(block)}))
def test_the_blocks_of_a_page_run_in_order(page: str, results: dict[str, str | None]) -> None:
    assert results[page] is None, results[page]


@pytest.mark.parametrize("block", of("bash", "console"), ids=lambda block: block.place)
def test_command_lines_are_such_that_clinit_takes_them(block: Block) -> None:
    for line in command_lines(block):
        words = words_of(line)
        if words[0] == "clinit":
            assert problem(words) is None, line
        else:
            assert _is_known(words), f"{block.place}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_within_a_line_exist(page: Path) -> None:
    for line in inline_commands(page.read_text(encoding="utf-8")):
        assert unknown(re.split(r"[\s,]+", line)) == [], line


def _is_known(words: list[str]) -> bool:
    """Return whether what a line that is not of clinit names is there."""
    match words:
        case ["make", target]:
            return f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
        case ["source", script]:
            return script == ".venv/bin/activate"  # where `make` puts the environment
        case ["python", script, *_]:
            return (ROOT / script).is_file()
        case ["pip", "install", what]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
            named = re.fullmatch(r"clinit\[([\w,]+)\]", what)
            known = extras["project"]["optional-dependencies"].keys()
            return named is not None and set(named[1].split(",")) <= known
    return False


@pytest.mark.parametrize(
    "line",
    [
        line
        for block in of("bash")
        for line in command_lines(block)
        if tuple(words_of(line)[1:3]) in CHEAP and ".parquet" not in line and ">" not in line
    ],
)
def test_cheap_commands_run(line: str) -> None:
    shown = CliRunner().invoke(app, words_of(line)[1:])
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize("block", of("toml", "json"), ids=lambda block: block.place)
def test_toml_and_json_can_be_read(block: Block) -> None:
    (tomllib if block.language == "toml" else json).loads(block.text)


@pytest.mark.parametrize("block", of("toml"), ids=lambda block: block.place)
def test_a_file_of_options_is_one(block: Block, tmp_path: Path) -> None:
    """A wrong section, key or value is refused before anything else."""
    path = tmp_path / "study.toml"
    path.write_text(block.text)
    words = ["train-head", "--config", str(path), "--base", "nowhere", "--new", "nowhere"]
    shown = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert "no feature cache at nowhere" in str(shown.exception), shown.output
