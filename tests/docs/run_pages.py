"""Run the Python and the commands of the pages, each page in a folder of its own.

    python run_pages.py FOLDER

One process for all pages, without the checks of types that tests otherwise add: it writes
`FOLDER/prepared`, what the pages name, and `FOLDER/results.json`, for each page a traceback or
null.
"""

import json
import os
import shutil
import sys
import traceback
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from clinit.cli.main import app
from tests.docs.pages import Block, all_blocks, words_of
from tests.docs.prepare import prepare


def run(block: Block, names: dict[str, Any]) -> None:
    """Run a block; its names are those of the page."""
    if block.language == "python":
        exec(compile("\n" * block.line + block.text, block.place, "exec"), names)
        return
    for line in block.command_lines:
        words = words_of(line)
        if "--out" in words:  # the prepared folder may have what the page is about to write
            shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
        shown = CliRunner().invoke(app, words[1:], catch_exceptions=False)
        assert shown.exit_code == 0, f"{line}\n{shown.output}"


def run_page(blocks: Sequence[Block], folder: Path) -> str | None:
    """Run the blocks of a page in order; return the traceback of the first that fails."""
    variables = dict(os.environ)
    os.chdir(folder)
    names: dict[str, Any] = {"__name__": "page"}
    try:
        for block in blocks:
            run(block, names)
    except BaseException:
        return traceback.format_exc()
    finally:
        os.environ.clear()
        os.environ.update(variables)
    return None


def main(folder: Path) -> None:
    """Prepare a folder, and run every page in a copy of it."""
    prepare(folder / "prepared")
    pages = defaultdict(list)
    for block in (each for each in all_blocks() if each.is_run):
        pages[block.page].append(block)
    results = {}
    for page, blocks in pages.items():
        shutil.copytree(folder / "prepared", folder / page)
        results[page] = run_page(blocks, folder / page)
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
