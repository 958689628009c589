"""The images of a feature cache are found where it says, or asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clinit.errors import ExperimentError
from clinit.extract.arrays.import_features import ImportConfig, import_features
from clinit.headtrain.top.inputs import open_side


def test_a_relative_folder_of_an_earlier_version_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit_document: Callable[..., None]
) -> None:
    np.savez(tmp_path / "a.npz", features=np.eye(3, 4, dtype=np.float16), labels=np.arange(3))
    import_features(tmp_path / "a.npz", None, tmp_path / "cache", ImportConfig(backbone="clip"))
    edit_document(tmp_path / "cache" / "train" / "cache.json", run={"root": "images"})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "0").touch()  # the first image by its name
    with pytest.raises(ExperimentError, match="were in images, seen from a folder that") as caught:
        open_side(tmp_path / "cache", None, option="--base-root")
    assert "Say where they are with --base-root, or run the `clinit extract`" in caught.value.remedy
    assert open_side(tmp_path / "cache", tmp_path / "images", option="--base-root")
