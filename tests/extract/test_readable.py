from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from clinit.errors import CacheError, HeadError, StorageError
from clinit.extract.head import Head, read_head, write_head
from clinit.extract.import_features import ImportConfig, import_features
from clinit.extract.manifest import read_manifest
from clinit.extract.readable import check_readable
from clinit.headtrain.export.model_file import read_facts

NOBODY = 65534
READERS = (read_head, read_manifest, read_facts)


@contextmanager
def without_rights(path: Path) -> Iterator[None]:
    """Take the right to read `path` away; root has none either as another user."""
    is_root = os.geteuid() == 0
    for folder in path.parents if is_root else ():
        if folder.stat().st_uid == 0 and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    path.chmod(0)
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.parametrize("read", READERS)
def test_a_file_without_rights_is_told_as_such(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "file.safetensors"
    write_head(Head(np.zeros((2, 3), np.float32), np.zeros(2, np.float32)), path)
    with without_rights(path), pytest.raises(StorageError) as caught:
        read(path)
    assert str(caught.value) == f"cannot read {path}: Permission denied"
    assert caught.value.remedy.startswith("Look at the rights")


def test_features_in_a_pipe_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f.npy")
    np.save(tmp_path / "l.npy", np.zeros(3, np.int64))
    config = ImportConfig(split="train", backbone="clip")
    with pytest.raises(CacheError, match=r"cannot read .*f\.npy: it is a device or a pipe"):
        import_features(tmp_path / "f.npy", tmp_path / "l.npy", tmp_path / "o", config)


def test_a_file_passes_and_a_folder_does_not(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_readable(tmp_path / "file", HeadError)
    with pytest.raises(HeadError, match="it is a folder"):
        check_readable(tmp_path, HeadError)
