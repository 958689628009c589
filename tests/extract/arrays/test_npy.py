"""A header is compared with the file before anything is reserved."""

import errno
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clinit.errors import CacheError, StorageError
from clinit.extract.arrays.numpy_files import NpyHeader, open_npy, read_npy_header


def npy(shape: object, descr: str = "'<f4'", data: bytes = bytes(64), version: int = 1) -> bytes:
    """A file as numpy writes it, with any header."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float16", "float64", ">f4", "int64", "<U3"])
def test_an_array_is_what_numpy_saved(tmp_path: Path, order: str, dtype: str) -> None:
    array = np.arange(12).reshape(4, 3).astype(dtype, order=order)  # type: ignore[call-overload]
    np.save(tmp_path / "a.npy", array)
    assert read_npy_header(tmp_path / "a.npy") == NpyHeader((4, 3), array.dtype)
    for mmap in (True, False):
        np.testing.assert_array_equal(open_npy(tmp_path / "a.npy", mmap=mmap), array)


def test_version_2_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(npy((4, 4), version=2))
    assert read_npy_header(tmp_path / "a.npy").shape == (4, 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy((2**60, 6)), r"float32 of shape \(1152921504606846976, 6\) takes 27,670,116,110"),
        (npy((17,)), r"float32 of shape \(17,\) takes [0-9]+ bytes, it has [0-9]+$"),
        (npy((-1,)), r"it declares float32 of shape \(-1,\)"),
        (npy((2**62,), "'<U0'"), r"it declares <U0 of shape"),
        (npy((3,), "'|O'"), "it holds Python objects"),
        (npy((3,), "[('a', '|O')]"), "it holds Python objects"),
        (npy("(3,", "'<f4'"), "its header is damaged$"),
        (npy((3,), "'zz'"), "its header is damaged$"),
        (npy("(" * 9000), "its header is damaged$"),
        (npy("-" * 9000 + "1"), "its header is damaged$"),
        (npy((3,), version=3), "its version is 3.0, expected 1.0 or 2.0"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}", "its header is 4,294,967,295 bytes long"),
        (b"\x93NUMPY\x01\x00", "its header is damaged$"),
        (b"PK\x03\x04 an archive", "it does not begin as one$"),
        (b"", "it does not begin as one$"),
    ],
)
def test_what_is_no_array_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(
        CacheError, match=rf"^cannot read .*a\.npy as a \.npy file: .*{message}"
    ) as caught:
        read_npy_header(path)
    assert "numpy.save" in caught.value.remedy


LITTLE = """
import resource, sys
from pathlib import Path
from clinit.errors import CacheError
from clinit.extract.arrays.numpy_files import read_npy_header
limit = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + 2**26
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sys.argv[1:]:
    try:
        read_npy_header(Path(path))
    except CacheError:
        print("refused")
"""


def test_nothing_is_reserved_for_what_a_header_declares(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(npy((2**31,)))
    (tmp_path / "header").write_bytes(b"\x93NUMPY\x02\x00\x00\x00\x00\x40{}")
    paths = [tmp_path / "rows", tmp_path / "header"]
    done = subprocess.run([sys.executable, "-c", LITTLE, *paths], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("refused\nrefused\n", "")


def test_an_absent_file_and_one_that_cannot_be_read_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CacheError, match=r"^no file at .*a\.npy$"):
        read_npy_header(tmp_path / "a.npy")

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    np.save(tmp_path / "a.npy", np.zeros(3))
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StorageError, match=r"^cannot read .*a\.npy: Input/output error$"):
        read_npy_header(tmp_path / "a.npy")
    monkeypatch.setattr(np, "load", refuse)
    with pytest.raises(StorageError, match=r"^cannot read .*a\.npy: Input/output error$"):
        open_npy(tmp_path / "a.npy", mmap=True)
