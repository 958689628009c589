import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from clinit.errors import CacheError
from clinit.extract.shard import Shard, assemble, fits_float16, read_shard, write_shard


@pytest.fixture
def shard() -> Shard:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(7, 5)).astype(np.float32)
    labels = np.array([0, 0, 1, 1, 2, 2, 2])
    return assemble(features, labels, {2: "the file is empty"}, dtype="float16")


def test_a_shard_survives_the_disk(shard: Shard, tmp_path: Path) -> None:
    write_shard(shard, tmp_path / "a.h5", plan_identifier="p")
    found = read_shard(tmp_path / "a.h5", plan_identifier="p")
    assert found.digest() == shard.digest()
    assert found.features.dtype == np.float16
    np.testing.assert_array_equal(found.features, shard.features)
    np.testing.assert_array_equal(found.labels, shard.labels)
    np.testing.assert_array_equal(found.valid, [1, 1, 0, 1, 1, 1, 1])
    assert found.reasons == {2: "the file is empty"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]


def test_the_same_shard_gives_the_same_bytes(shard: Shard, tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5"):
        write_shard(shard, tmp_path / name, plan_identifier="p")
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_an_invalid_row_holds_zeros_and_moves_no_other() -> None:
    features = np.arange(12, dtype=np.float32).reshape(4, 3)
    shard = assemble(features, np.zeros(4, np.int64), {1: "bad"}, dtype="float32")
    np.testing.assert_array_equal(shard.features[1], 0)
    np.testing.assert_array_equal(shard.features[[0, 2, 3]], features[[0, 2, 3]])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_make_their_row_invalid(value: float) -> None:
    features = np.ones((3, 2), dtype=np.float32)
    features[1, 0] = value
    shard = assemble(features, np.zeros(3, np.int64), {}, dtype="float16")
    assert shard.reasons == {1: "the features are not finite"}
    np.testing.assert_array_equal(shard.valid, [True, False, True])
    assert np.isfinite(shard.features).all()


@pytest.mark.parametrize("value", [1e-9, 6e-8, -3e-5, 6.09e-5])
@pytest.mark.parametrize("shape", [(3, 4), (3, 2, 2)])
def test_rows_that_float16_would_round_to_zeros_are_stored_in_float32(
    value: float, shape: tuple[int, ...]
) -> None:
    features = np.ones(shape, dtype=np.float32)
    features[1] = value * 1.001
    shard = assemble(features, np.zeros(3, np.int64), {}, dtype="float16")
    assert shard.features.dtype == np.float32
    np.testing.assert_array_equal(shard.features, features)


@pytest.mark.parametrize("rows", [[0.0, 0.0], [1.0, 1e-9], [-1.0, 0.0], [6.2e-5, 0.0]])
def test_zeros_and_small_values_beside_others_stay_in_float16(rows: list[float]) -> None:
    features = np.array([rows, [1.0, 2.0]], dtype=np.float32)
    shard = assemble(features, np.zeros(2, np.int64), {}, dtype="float16")
    assert shard.features.dtype == np.float16
    np.testing.assert_array_equal(shard.features, features.astype(np.float16))


def test_small_rows_that_were_float16_already_stay_in_float16() -> None:
    rows = [[1e-7, 0.0, -3e-6], [1.0, 2.0, 3.0]]
    features = np.array(rows, dtype=np.float16).astype(np.float32)
    shard = assemble(features, np.zeros(2, np.int64), {}, dtype="float16")
    assert shard.features.dtype == np.float16
    np.testing.assert_array_equal(shard.features.astype(np.float32), features)


def test_an_invalid_row_does_not_choose_the_type() -> None:
    features = np.full((2, 3), 1e-9, dtype=np.float32)
    features[0] = 1
    shard = assemble(features, np.zeros(2, np.int64), {1: "bad"}, dtype="float16")
    assert shard.features.dtype == np.float16


def _fits(features: np.ndarray) -> bool:
    """As the docstring of `fits_float16` says it, row by row."""
    for row in features.reshape(len(features), -1).tolist():
        largest = max(map(abs, row))
        if largest >= 65_504:
            return False
        same = [float(np.float16(value)) for value in row] == row
        if largest < 2**-14 and not same:
            return False
    return True


def test_the_rule_is_that_of_a_slow_loop() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(300):
        scale = 2.0 ** rng.integers(-30, 18, (4, 1))
        features = (rng.normal(size=(4, 3)) * scale).astype(np.float32)
        features[rng.random(4) < 0.3] = 0
        if rng.random() < 0.3:
            features = np.clip(features, -6e4, 6e4).astype(np.float16).astype(np.float32)
        found.append(fits_float16(features))
        assert found[-1] == _fits(features)
    assert 50 < sum(found) < 250


@pytest.mark.parametrize("value", [65_520.0, -1e6])
def test_what_float16_cannot_hold_is_stored_in_float32(value: float) -> None:
    features = np.array([[1.0, value]], dtype=np.float32)
    shard = assemble(features, np.zeros(1, np.int64), {}, dtype="float16")
    assert shard.features.dtype == np.float32
    np.testing.assert_array_equal(shard.features, features)


def test_a_flipped_byte_is_found(shard: Shard, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write_shard(shard, path, plan_identifier="p")
    with h5py.File(path) as file:
        offset = file["features"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[offset + 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(CacheError, match=r"a\.h5 has changed since it was written") as caught:
        read_shard(path)
    assert "computes this shard anew" in caught.value.remedy


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_shard_is_found(shard: Shard, tmp_path: Path, part: float) -> None:
    path = tmp_path / "a.h5"
    write_shard(shard, path, plan_identifier="p")
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(CacheError, match=r"a\.h5 cannot be read as a shard: "):
        read_shard(path)


def test_a_shard_of_another_plan_is_refused(shard: Shard, tmp_path: Path) -> None:
    write_shard(shard, tmp_path / "a.h5", plan_identifier="p")
    with pytest.raises(CacheError, match="belongs to another extraction"):
        read_shard(tmp_path / "a.h5", plan_identifier="q")


def test_an_absent_shard_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match=r"a\.h5 is missing"):
        read_shard(tmp_path / "a.h5")


FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
from clinit.errors import ClinitError
from clinit.extract.shard import assemble, write_shard
resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))  # no file grows beyond 2 kB
features = np.random.default_rng(0).normal(size=(7, 500)).astype(np.float32)
shard = assemble(features, np.zeros(7, np.int64), {}, dtype="float16")
try:
    write_shard(shard, Path(sys.argv[1]), plan_identifier="p")
except ClinitError as error:
    print(error, "|", error.remedy)
"""


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    # In a process of its own: the limit would also hold for what the tests print.
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, tmp_path / "a.h5"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"cannot write {tmp_path / 'a.h5'}: File too large | Free space")
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []
