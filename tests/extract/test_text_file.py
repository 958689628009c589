from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from clinit.errors import CacheError, ExperimentError
from clinit.extract.class_names import read_class_names
from clinit.extract.text_file import LIMIT_BYTES, TextFileError, read_text
from clinit.headtrain.class_order import read_class_order


def test_a_text_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "names"
    path.write_text("é\n" * 1000, encoding="utf-8")
    assert read_text(path) == "é\n" * 1000
    path.write_bytes(b"a" * LIMIT_BYTES)
    assert len(read_text(path)) == LIMIT_BYTES
    assert read_text(Path(os.devnull)) == ""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a\nb\n\xff", r"it is not UTF-8 text \(line 3\)"),
        (b"a\0", "it is not text: it holds NUL bytes"),
        (b"a" * (LIMIT_BYTES + 1), "it is larger than 16 MiB"),
        (None, "No such file or directory"),
    ],
)
def test_what_is_no_text_is_refused_with_the_reason(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "names"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TextFileError, match=rf"^{reason}$"):
        read_text(path)
    with pytest.raises(CacheError, match=rf"cannot read the class names in .*names: {reason}$"):
        read_class_names(path)
    with pytest.raises(ExperimentError, match=rf"cannot read the class order .*names: {reason}$"):
        read_class_order(path)


def test_a_folder_and_a_name_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TextFileError, match="it is a folder"):
        read_text(tmp_path)
    with pytest.raises(TextFileError, match="File name too long"):
        read_text(tmp_path / ("x" * 300))
    with pytest.raises(TextFileError, match="null byte"):
        read_text(tmp_path / "a\0b")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no device that never ends")
def test_a_device_that_never_ends_is_refused() -> None:
    with pytest.raises(TextFileError, match="larger than 16 MiB"):
        read_text(Path("/dev/zero"))


def test_a_pipe_is_read_but_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(TextFileError, match="a pipe that nobody writes into"):
        read_text(path)
    writer = threading.Thread(target=lambda: path.write_text("a\nb\n", encoding="utf-8"))
    writer.start()
    assert read_text(path) == "a\nb\n"
    writer.join()
