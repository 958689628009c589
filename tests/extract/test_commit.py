from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from clinit.errors import ClinitError
from clinit.extract.commit import commit_file, commit_json


def write_a(path: Path) -> None:
    commit_file(path, lambda draft: draft.write_text("a"))


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(os.devnull)
    for name in ("pipe", "link"):
        with pytest.raises(ClinitError) as caught:
            write_a(tmp_path / name)
        assert str(caught.value) == f"cannot write {tmp_path / name}: it is a device or a pipe"
        assert caught.value.remedy == "Give the name of a file."
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(ClinitError, match=r"cannot write .*: it is a folder"):
        write_a(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]  # noqa: PTH208
    write_a(tmp_path / "file")
    write_a(tmp_path / "file")


def test_a_path_that_is_no_text_is_kept_in_json(tmp_path: Path) -> None:
    content = {"path": os.fsdecode(b"caf\xe9"), "name": "caf\u00e9"}
    commit_json(tmp_path / "facts.json", content)
    text = (tmp_path / "facts.json").read_text(encoding="utf-8")
    assert json.loads(text) == content
    assert "caf\u00e9" in text
