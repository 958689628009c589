"""Model folders with one changed bit, or cut short; `tests/faults` runs the commands."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clinit.errors import ClinitError
from clinit.headtrain.model.edit import Model, open_model
from clinit.headtrain.model.export import export_run

FILES = ("config.json", "model.safetensors", "memory.safetensors")


@pytest.fixture(scope="module")
def whole(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "model"
    export_run(tiny_run, folder)
    assert {path.name for path in folder.iterdir()} >= {*FILES}
    return folder


def content(model: Model) -> list[Any]:
    """Return all that commands read of a model."""
    assert model.memory is not None
    head, memory = model.head, model.memory
    tensors = {name: tensor.tobytes() for name, tensor in memory.tensors().items()}
    told = (memory.class_names, memory.averaged, memory.freedom, memory.exact, memory.backbone)
    return [model.facts, model.backbone.weights_sha256, head.weight.tobytes(), told, tensors]


def flipped(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_folder_is_read_as_it_was_or_not_at_all(
    whole: Path, tmp_path: Path, name: str
) -> None:
    own = Path(shutil.copytree(whole, tmp_path / "model"))
    written = (own / name).read_bytes()
    places = [0, 8, *np.linspace(9, len(written) - 1, num=9).astype(int).tolist()]
    damaged = [flipped(written, place, number % 8) for number, place in enumerate(places)]
    damaged += [written[:length] for length in (0, 8, len(written) // 2, len(written) - 1)]
    expected, refused = content(open_model(whole, device="cpu")), 0
    for each in damaged:
        (own / name).write_bytes(each)
        try:
            assert content(open_model(own, device="cpu")) == expected
        except ClinitError:
            refused += 1
    assert refused >= len(damaged) // 2  # white space says nothing


@pytest.mark.parametrize("name", FILES[1:])
def test_no_bit_of_the_numbers_goes_unnoticed(whole: Path, tmp_path: Path, name: str) -> None:
    own = Path(shutil.copytree(whole, tmp_path / "model"))
    written = (own / name).read_bytes()
    for place in (-1, -len(written) // 3):
        (own / name).write_bytes(flipped(written, place % len(written), 0))
        with pytest.raises(ClinitError):
            open_model(own, device="cpu")
