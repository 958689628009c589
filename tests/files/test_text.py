import fcntl
import os
import termios
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clinit.errors import CacheError, ExperimentError
from clinit.extract.dataset.names import read_class_names
from clinit.files.text import LIMIT_BYTES, TextFileError, read_text
from clinit.headtrain.protocol.stream.scenario import read_class_order
from tests.conftest import until


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a\nb\n\xff", r"it is not UTF-8 text \(line 3\)"),
        (b"a\0", "it is not text: it contains NUL bytes"),
        (b"a" * (LIMIT_BYTES + 1), "it is larger than 16 MiB"),
        (None, r"No such file or directory\. Did you mean .*/names\.txt\?"),
    ],
)
def test_what_is_no_text_is_refused_with_the_reason(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "names"
    (tmp_path / "names.txt").touch()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TextFileError, match=rf"^{reason}$"):
        read_text(path)
    with pytest.raises(CacheError, match=rf"cannot read class names in .*names: {reason}$"):
        read_class_names(path)
    with pytest.raises(ExperimentError, match=rf"cannot read the class order .*names: {reason}$"):
        read_class_order(path)


def test_names_are_lines_alone(tmp_path: Path) -> None:
    path = tmp_path / "names"
    names = ("a", "b\u2028b", "c\x85c", "d\x0cd")
    path.write_text("\ufeffa\r\nb\u2028b\n\n c\x85c \rd\x0cd", encoding="utf-8", newline="")
    assert read_class_names(path) == names
    assert read_class_order(path) == names


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="no names for descriptors")
def test_a_pipe_without_a_name_is_waited_for_until_it_is_closed(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    (tmp_path / "link").symlink_to(f"/dev/fd/{reads}")
    with ThreadPoolExecutor(1) as other:
        text = other.submit(read_text, tmp_path / "link")
        for part in (b"a", b"b\n"):  # the second when the reader has found nothing more
            os.write(writes, part)
            until(lambda: fcntl.ioctl(reads, termios.FIONREAD, bytes(4)) == bytes(4))
        os.close(writes)
        assert text.result() == "ab\n"
    os.close(reads)
