"""Every block of code of README and pages runs, or says why it does not; links lead somewhere."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from clinit.cli.reference import reference
from tests.cli.calls import call
from tests.conftest import Once
from tests.docs import pages
from tests.docs.pages import GENERATED, PAGES, ROOT, Block

LANGUAGES = {"bash", "bibtex", "console", "diff", "json", "python", "text", "toml"}
BLOCKS = pages.all_blocks()
LINKING = [
    *PAGES,
    *(ROOT / "CHANGELOG.md", *sorted((ROOT / "benchmarks").glob("*.md"))),
    *sorted((ROOT / "tests" / "data").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*.ipynb")),
]


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages and not block.is_left_out]


def test_every_block_says_its_language_and_a_block_that_is_left_out_says_why() -> None:
    for block in BLOCKS:
        assert block.language in LANGUAGES, block.place
        mark = r"not run( here)?: \S.{5,}" if block.is_left_out else r"|run|(file|change): \S+"
        assert re.fullmatch(mark, block.mark), block.place
    parsed = {block.page for block in of("bash", "console") if not block.mark}
    for page in PAGES:
        if page.name in parsed - {pages.RUN_IN_A_COPY, "CONTRIBUTING.md"}:
            text = page.read_text(encoding="utf-8")
            assert re.search(r"^<!-- parsed: \S.{5,} -->$", text, re.MULTILINE), page
    fences = sum(
        len(re.findall(r"^```", page.read_text(encoding="utf-8"), re.MULTILINE))
        for page in PAGES
        if page.name != GENERATED
    )
    assert fences == 2 * len(BLOCKS)


@pytest.fixture(scope="session")
def results(once: Once) -> dict[str, str | None]:
    """What became of each page when it was run: a traceback, or None."""

    def make(folder: Path) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), str(ROOT / "benchmarks")])
        done = subprocess.run(
            [sys.executable, ROOT / "tests" / "docs" / "run_pages.py", folder],
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

    found: dict[str, str | None] = json.loads((once("pages", make) / "results.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if block.is_run}))
def test_the_blocks_of_a_page_run_in_order(page: str, results: dict[str, str | None]) -> None:
    assert results[page] is None, results[page]


@pytest.mark.parametrize("block", of("bash", "console"), ids=lambda block: block.place)
def test_command_lines_are_such_that_clinit_takes_them(block: Block) -> None:
    for line in block.command_lines:
        words = pages.words_of(line)
        if words[0] == "clinit":
            assert pages.problem(words) is None, line
        else:
            assert _is_known(words), f"{block.place}: {line}"


def _is_known(words: list[str]) -> bool:
    """Return whether what a line that is not of clinit names is there."""
    match words:
        case ["make", target]:
            return f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
        case ["source", script]:
            return script == ".venv/bin/activate"  # where `make` puts the environment
        case ["python", script, *_]:
            return (ROOT / script).is_file()
        case ["python3", "-m", "venv", ".venv"] | ["pip", "install", "."] | ["cd", _]:
            return True
        case ["pip", "install", what]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
            named = re.fullmatch(r"clinit\[([\w,]+)\]", what)
            known = extras["project"]["optional-dependencies"].keys()
            return named is not None and set(named[1].split(",")) <= known
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_within_a_line_exist(page: Path) -> None:
    for line in pages.inline_commands(page.read_text(encoding="utf-8")):
        assert pages.unknown(re.split(r"[\s,]+", line)) == [], line


@pytest.mark.parametrize("block", of("toml", "json"), ids=lambda block: block.place)
def test_json_can_be_read_and_toml_is_a_file_of_options(block: Block, tmp_path: Path) -> None:
    """A wrong section, key or value is refused before anything else."""
    if block.language == "json":
        json.loads(block.text)
        return
    path = tmp_path / "study.toml"
    path.write_text(block.text)
    words = ["train-head", "--config", str(path), "--base", "nowhere", "--new", "nowhere"]
    shown = call(*words, "--out", tmp_path / "out")
    assert "no feature cache at nowhere" in str(shown.exception), shown.output


def test_the_command_reference_is_current() -> None:
    stored = (ROOT / "docs" / GENERATED).read_text(encoding="utf-8")
    assert stored == reference(), "write it anew: `make reference`"


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in pages.links_of(page):
        if target.startswith(("https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.is_relative_to(ROOT), target
        assert path.exists(), target
        assert page.parent.name != "docs" or path.is_relative_to(page.parent)  # the site is that
        assert not anchor or anchor in pages.anchors_of(path), target


def test_every_format_has_its_line() -> None:
    page, found = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8"), set()
    for part in ("extract", "headtrain"):
        for path in (ROOT / part).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            found |= set(re.findall(r"[\"b]clinit-([a-z]+)/(\d+)", text))
    assert len({name for name, _ in found}) >= 10
    for name, number in found:
        line = re.search(rf"^\|.*`clinit-{name}/.*$", page, re.MULTILINE)
        assert line is not None, name
        assert f"/{number}`" in line[0], name


def literals() -> Iterator[str]:
    """Yield the texts of the source; `…` stands for what is put into them."""
    for part in ("analysis", "cli", "extract", "headtrain", "src/clinit"):
        for path in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(
                        str(getattr(each, "value", "…")) if isinstance(each, ast.Constant) else "…"
                        for each in node.values
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


@pytest.mark.slow
def test_the_messages_that_are_explained_are_those_of_the_source() -> None:
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)`.*? \| ", page, re.MULTILINE)
    assert len(messages) > 30
    texts = "\0".join(literals())
    patterns = {
        message: "[^\0]*?".join(re.escape(part.strip()) for part in message.split("…"))
        for message in messages
    }
    assert [message for message in messages if not re.search(patterns[message], texts)] == []
