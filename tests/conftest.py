import fcntl
import hashlib
import json
import os
import pickle
import random
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import settings
from PIL import Image

from clinit.files.documents import content_sha256

# Processes of these tests may write no large file: Python would leave half of the bytecode of a
# module, and every later import of it would fail. The tests themselves are compiled once.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.dont_write_bytecode = False

# What a terminal, a CI or a user has set is no part of these tests. It goes before other modules
# are imported, because many read it once.
TOLD = (
    *("FORCE_COLOR", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "PY_COLORS", "TERM"),
    *("COLUMNS", "LINES", "TERMINAL_WIDTH", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
    *("PYTHONWARNINGS", "MPLBACKEND"),
)
for _name in TOLD:
    os.environ.pop(_name, None)

# The same examples each time, and no limit that a busy machine exceeds; `make test-all` draws new
# ones (`--hypothesis-profile=random`).
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("fixed")

# A power failure is no part of these tests, and to wait for the disk is much of their time.
os.fsync = lambda file: None  # type: ignore[assignment]

TINY_MODEL = "convnextv2_atto"
TINY_ARGS: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="another order of files, tests backwards")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put files with slow tests first, so that no process is left with one of them at the end."""
    files = list(dict.fromkeys(item.path for item in items))
    if seed := config.getoption("--shuffle"):
        random.Random(seed).shuffle(files)
        items.reverse()
    else:
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        files.sort(key=lambda path: path not in slow)
    place = {path: number for number, path in enumerate(files)}
    items.sort(key=lambda item: place[item.path])


BEGAN = time.monotonic()


def pytest_sessionfinish() -> None:
    """End the server of `tests.faults.process`, whose time counts only then."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how long all took: CPU time of this process and of all that have ended below it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu_s = sum(each.ru_utime + each.ru_stime for each in used)
        wall_s = time.monotonic() - BEGAN
        terminalreporter.write_line(f"{wall_s / 60:.1f} min, {cpu_s / 60:.1f} min of CPU time")


@pytest.fixture(autouse=True)
def _same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear what may have been set since, and seed every generator that tests share."""
    for name in TOLD:
        monkeypatch.delenv(name, raising=False)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _skip_without_gpu(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True)
def _skip_where_types_are_checked(request: pytest.FixtureRequest) -> None:
    checked = request.config.getoption("--jaxtyping-packages")
    if checked and request.node.get_closest_marker("untyped"):
        pytest.skip("gives what the types forbid")


Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Make a folder once for all processes of the suite: `once("cache", write_cache)`.

    The first test that asks for it calls the function with the empty folder, the others wait for
    it. Nobody may change it: a test that must, works on a copy.
    """
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    def made(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = root / name, root / f"{name}.made"
        with (root / f"{name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of one that has failed
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return made


def write_weights(
    path: Path,
    noise: float = 0.3,
    model: str = TINY_MODEL,
    arguments: Mapping[str, Any] = TINY_ARGS,
    *,
    classes: Sequence[str] = "abc",
    seed: int = 7,
) -> Path:
    """Write weights of a network: without more said, of a ConvNeXtV2 of 12 features."""
    import timm
    from safetensors.torch import save_file

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = timm.create_model(model, num_classes=len(classes), **arguments)
        for name, value in network.state_dict().items():
            if value.is_floating_point():
                draw = torch.rand_like if name.endswith("running_var") else torch.randn_like
                value += noise * draw(value)
    save_file(network.state_dict(), path, metadata={"class_names": json.dumps([*classes])})
    return path


@pytest.fixture(scope="session")
def tiny_weights(once: Once) -> Path:
    """The file of `write_weights`."""
    folder = once("weights", lambda folder: write_weights(folder / "tiny.safetensors"))
    return folder / "tiny.safetensors"


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Path]:
    """Write weights, images of the classes a to e, two caches and a record into a folder.

    The backbone knows a, b and c; d and e arrive in two tasks. Returns the record's folder.
    """
    from clinit.extract.dataset.scan import scan
    from clinit.extract.network.backbone import BackboneConfig
    from clinit.extract.work.run import ExtractConfig, extract
    from clinit.headtrain.protocol.experiment import RunData, run_experiment
    from clinit.headtrain.protocol.record.format import write_record
    from clinit.headtrain.protocol.stream.source import read_source
    from clinit.headtrain.protocol.study.study import Study

    def make(folder: Path, model: str = TINY_MODEL, **model_args: Any) -> Path:
        model_args = model_args or TINY_ARGS
        folder.mkdir(parents=True, exist_ok=True)
        weights = write_weights(folder / "weights.safetensors", 0.05, model, model_args, seed=3)
        backbone = BackboneConfig(name=model, weights=weights, model_args=model_args)
        config = ExtractConfig(backbone=backbone, input_size=32, batch_size=4)
        for side, classes in (("base", "abc"), ("new", "de")):
            write_images(folder / side, classes, train=6, val=4)
            splits = ("train", "val")
            manifests = {split: scan("folder", folder / side, split).manifest for split in splits}
            list(extract(manifests, folder / side, folder / "caches" / side, config))
        base, new = (read_source(folder / "caches" / side) for side in ("base", "new"))
        assert base.head is not None
        stream: dict[str, Any] = {"tasks": 2, "iterations": 8, "eval_every": 4, "batch_size": 4}
        stream |= {"buffer": 12, "device": "cpu"}
        (record,) = run_experiment(RunData(base, new, base.head), [Study.of(stream)])
        write_record(record, folder / "run")
        return folder / "run"

    return make


def until(is_met: Callable[[], object]) -> None:
    """Wait until a condition is met, however busy the machine is."""
    late = time.monotonic() + 300
    while not is_met():
        assert time.monotonic() < late, "waited in vain"
        Event().wait(0.005)


@contextmanager
def unwritten(*files: Path) -> Iterator[None]:
    """Assert that nothing writes or replaces files: their date, of long ago, stays."""
    for path in files:
        os.utime(path, (1, 1))
    yield
    assert {path.stat().st_mtime for path in files} == {1.0}


def write_images(
    root: Path, classes: Sequence[str] = "abc", endings: Sequence[str] = ("png",), **splits: int
) -> None:
    """Write `root/<split>/<class>/<number>.png`, so many of each class, of a colour of its own.

    The images have 40 x 36 pixels; their endings alternate.
    """
    rng = np.random.default_rng(sum(classes[0].encode()))
    for split, count in splits.items():
        for name in classes:
            colour = np.random.default_rng(sum(name.encode())).integers(60, 196, 3)
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = (colour + rng.integers(-50, 50, (36, 40, 3))).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.{endings[number % len(endings)]}")


@pytest.fixture(scope="session")
def tiny_run(make_run: Callable[..., Path], once: Once) -> Path:
    """The record of a run on features of a ConvNeXtV2, beside its images and caches."""
    return once("tiny", make_run) / "run"


@pytest.fixture(scope="session")
def tiny_onnx(tiny_run: Path, once: Once) -> Any:
    """The export of that run as a folder with an ONNX form."""
    from clinit.headtrain.model.export import export_model

    def make(folder: Path) -> None:
        export = export_model(tiny_run, folder / "scenes", onnx=True)
        (folder / "export").write_bytes(pickle.dumps(export))

    return pickle.loads((once("onnx", make) / "export").read_bytes())


@pytest.fixture
def make_tree(tmp_path: Path) -> Callable[..., Path]:
    """Write images (`write_images`) into the folder of the test; return where they are."""

    def make(name: str = "images", train: int = 5, val: int = 2, **how: Any) -> Path:
        write_images(tmp_path / name, train=train, val=val, **how)
        return tmp_path / name

    return make


@pytest.fixture
def seal_record(edit_document: Callable[..., None]) -> Callable[..., None]:
    """Give the record in a folder, changed by hand, its digests and its seal again."""

    def seal(folder: Path, **changes: object) -> None:
        files = sorted(path for path in folder.iterdir() if path.name != "run.json")
        digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        edit_document(folder / "run.json", files=digests, **changes)

    return seal


@pytest.fixture
def without_test_images(seal_record: Callable[..., None]) -> Callable[[Path], None]:
    """Make the record in a folder one of a run without a test image."""
    from clinit.headtrain.protocol.record.format import read_record

    def empty(folder: Path) -> None:
        record = read_record(folder)
        record.evaluations.clear().write_parquet(folder / "evaluations.parquet")
        record.mistakes.clear().write_parquet(folder / "mistakes.parquet")
        classes = record.classes.with_columns(val_rows=pl.lit(0, dtype=pl.Int64))
        classes.write_parquet(folder / "classes.parquet")
        seal_record(folder)

    return empty


@pytest.fixture
def edit_document() -> Callable[..., None]:
    """Change fields of a sealed document by hand, and seal it again."""

    def edit(path: Path, **changes: object) -> None:
        content = json.loads(path.read_text(encoding="utf-8")) | changes
        content.pop("sha256", None)
        path.write_text(json.dumps({**content, "sha256": content_sha256(content)}))

    return edit
