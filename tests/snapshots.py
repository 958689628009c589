"""Whole sentences of a command, in one text file for each command: `tests/shown/NAME.txt`.

A test of its own checks the class of an error and the one fact that a user needs; how a message
reads as a whole stands here alone, so that rewording it costs one update:

    CLINIT_WRITE_SNAPSHOTS=1 pytest tests/cli
"""

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "shown"


def check_snapshot(name: str, text: str, *paths: Path) -> None:
    """Compare `text` with a snapshot; `paths` (such as `tmp_path`) are written as `DIR`."""
    for path in paths:
        text = text.replace(str(path), "DIR")
    text = "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"
    file = FOLDER / f"{name}.txt"
    if os.environ.get("CLINIT_WRITE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
