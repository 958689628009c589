"""Compiled networks: the same features up to rounding, whatever the batch; and when it pays."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._inductor import config

from clinit.errors import BackboneError, CacheError
from clinit.extract.cache.plan import Part, Plan, shard_name
from clinit.extract.cache.read import open_cache
from clinit.extract.network import compiled as module
from clinit.extract.network.backbone import Backbone, load_backbone
from clinit.extract.network.compiled import Compile, compiled, on_its_way
from clinit.extract.network.transform import Transform
from clinit.extract.work.pipeline import ImageBatch, Timing, side_by_side
from tests.extract.work.made import extracted, files, tiny_backbone, tiny_config

TRANSFORM = Transform(32, (32, 32), "bilinear", (0.5,) * 3, (0.5,) * 3)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture
def backbone(tiny_weights: Path) -> Backbone:
    return load_backbone(tiny_backbone(tiny_weights))


def chosen(backbone: Backbone, wanted: Compile, images: int) -> tuple[Backbone, list[str]]:
    """Return the network on its way, and what was noted."""
    notes, sizes = list[str](), {"batch_size": 4, "images": images}
    return on_its_way(backbone, TRANSFORM, wanted, on_note=notes.append, **sizes), notes


@pytest.mark.untyped  # checks of types make a second graph
@pytest.mark.slow
@needs_compiler
def test_features_are_those_of_the_plain_network_and_do_not_depend_on_the_rest_of_a_batch(
    backbone: Backbone,
) -> None:
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    program = compiled(backbone.forward, images)
    whole, plain = program(images), backbone.features(images)
    np.testing.assert_allclose(whole, plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))
    for count in (1, 3):
        assert torch.equal(program(images[:count]), whole[:count])
    assert torch.equal(program(images.to(memory_format=torch.channels_last)), whole)


def test_a_few_images_are_not_worth_a_compilation(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda forward, **options: pytest.fail("compiled"))
    asked: list[tuple[Compile, int]] = [("off", 10**9), ("auto", 119), ("auto", 0)]
    monkeypatch.setattr(Backbone, "forward", lambda self, batch: pytest.fail("measured"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    for wanted, images in asked:
        assert chosen(backbone, wanted, images) == (backbone, [])


@pytest.mark.parametrize(
    ("program_s", "is_kept", "told"),
    [
        (0.1, True, "the network is compiled (in 0 s, 10.0 times as fast)"),
        (1.0, False, "the network is not compiled: its program is only 1.00 times as fast"),
    ],
)
def test_a_program_is_kept_if_it_is_faster(
    backbone: Backbone,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    program_s: float,
    is_kept: bool,
    told: str,
) -> None:
    """The clock advances with the calls of the network and of its program alone."""
    now = [0.0]

    def taking(seconds: float) -> Callable[[Tensor], Tensor]:
        def call(batch: Tensor) -> Tensor:
            now[0] += seconds * len(batch) / 4
            return torch.ones(len(batch), 12)

        return call

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(Backbone, "forward", lambda self, batch: taking(1.0)(batch))
    monkeypatch.setattr(torch, "compile", lambda forward, **options: taking(program_s))
    found, notes = chosen(backbone, "auto", 4000)
    limit = "the network is compiled, for at most 100 s: without that, 4,000 images take 1000 s"
    assert ((found.program is not None), notes) == (is_kept, [limit, told])
    monkeypatch.setattr(torch, "compile", lambda forward, **options: pytest.fail("again"))
    if not is_kept:
        assert chosen(backbone, "auto", 10**9) == (backbone, [])


def test_a_trial_that_takes_too_long_is_ended_and_not_soon_repeated(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def endless() -> None:
        for _ in range(10**9):
            pass

    with pytest.raises(module._SpentError):
        module._within(0.001, endless)
    assert module._within(600, lambda: 3) == 3
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(module, "seconds_of", lambda forward, batch, calls: len(batch) / 4)
    monkeypatch.setattr(torch, "compile", lambda forward, **options: lambda batch: endless())
    budget = module.TrialVerdict.budget
    monkeypatch.setattr(module.TrialVerdict, "budget", lambda *given: 1e-3 * budget(*given))
    found, notes = chosen(backbone, "auto", 4000)
    told = "the network is not compiled: that takes more than 0 s"
    assert (found, notes[1:]) == (backbone, [told])
    (file,) = (tmp_path / "clinit" / "compiled").iterdir()
    assert module.TrialVerdict.read(file) == module.TrialVerdict(0.0, 0.1)


@pytest.mark.parametrize(
    ("gain", "seconds", "work_s", "budget_s"),
    [
        (0.0, 0.0, 300, 30),  # a first trial
        (0.0, 30.0, 600, 0),  # it took more than 30 s
        (0.0, 30.0, 610, 61),
        (2.0, 25.0, 50, 0),
        (2.0, 25.0, 52, 26),
        (1.04, 1.0, 10**6, 0),
    ],
)
def test_compiling_never_takes_more_than_it_saves(
    gain: float, seconds: float, work_s: float, budget_s: float
) -> None:
    assert module.TrialVerdict(gain, seconds).budget(work_s) == pytest.approx(budget_s)


def test_without_a_compiler_the_plain_network_computes_unless_a_program_is_asked_for(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = RuntimeError("InvalidCxxCompiler: no working C++ compiler\nmore")
    monkeypatch.setattr(torch, "compile", lambda forward, **options: Mock(side_effect=error))
    monkeypatch.setattr(module, "LEAST_S", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found, notes = chosen(backbone, "auto", 10**6)
    assert (found, len(notes)) == (backbone, 2)
    assert "no working C++ compiler" in notes[1]
    with pytest.raises(BackboneError, match="no working C"):
        chosen(backbone, "on", 10**6)


@pytest.mark.untyped  # checks of types make a second graph
@pytest.mark.slow
@needs_compiler
def test_a_cache_is_of_one_way_and_resumes_to_the_same_bits(
    make_tree: Callable[..., Path], tiny_weights: Path, tmp_path: Path
) -> None:
    root, out = make_tree(), tmp_path / "cache"  # 15 and 6 images
    config = tiny_config(tiny_weights, batch_size=4, shard_rows=8, workers=1)
    on = replace(config, compile="on")
    extracted(root, tmp_path / "whole", on)
    extracted(root, out, on, Part(1, 2))
    (out / "train" / shard_name(0)).unlink()
    extracted(root, out, config)  # auto: as it was begun
    assert files(out) == files(tmp_path / "whole")
    (out / "val" / shard_name(0)).write_bytes(b"damaged")
    assert extracted(root, out, config)[1].computed_rows == 6
    assert files(out) == files(tmp_path / "whole")
    assert Plan.read(out / "val").compiled
    with pytest.raises(CacheError, match="compiled = True, but this command has compiled = False"):
        extracted(root, out, replace(config, compile="off"))
    extracted(root, tmp_path / "plain", config)
    assert not Plan.read(tmp_path / "plain" / "train").compiled
    one, other = (open_cache(each).split("train").load() for each in (out, tmp_path / "plain"))
    scale = np.abs(other.features).max()
    np.testing.assert_allclose(one.features, other.features, rtol=2**-10, atol=1e-3 * scale)


@pytest.mark.gpu
@pytest.mark.parametrize(("autocast", "share"), [("off", 1e-5), ("tf32", 1e-2)])
def test_a_gpu_computes_the_features_by_one_program_that_the_caller_has_compiled(
    tiny_weights: Path, autocast: str, share: float
) -> None:
    """A second compilation raises an error; 2.11 and 2.12 would fail at the second call."""
    plain = load_backbone(tiny_backbone(tiny_weights, device="cuda", autocast=autocast))
    found = on_its_way(plain, TRANSFORM, "on", batch_size=4, images=9)
    for count in (4, 4, 1):
        batch = torch.randn(count, 3, 32, 32, device="cuda")
        expected = plain.features(batch)
        atol = share * float(expected.abs().max())
        torch.testing.assert_close(found.features(batch), expected, rtol=0, atol=atol)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method")  # PyTorch 2.11, of its own
@pytest.mark.untyped  # checks of types make a second graph
@pytest.mark.skipif(
    torch.__version__ < "2.12", reason="PyTorch 2.11 crashes if this is the first graph it makes"
)
def test_one_program_is_made_and_called_in_threads_of_one_thread_or_refused(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch has two threads here, as for a user; the graph is run as it is."""
    graphs, before = [], torch.get_num_threads()

    def compile_fx(graph: Any, inputs: object, config_patches: object) -> Any:
        graphs.append((config_patches, config.freezing, config.cpp_cache_precompile_headers))
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    torch.set_num_threads(2)
    try:
        found, _ = chosen(backbone, "on", 10**6)
        pixels = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
        batches = (ImageBatch(range(4), pixels, {}, 0, 0) for _ in range(6))
        features = side_by_side(batches, lambda batch: found.features(batch.float()), Timing())
        # Precompiled headers would lie in a folder that another user may have made.
        assert (len(list(features)), graphs) == (6, [({"cpp.threads": 1}, True, False)])
        with pytest.raises(RuntimeError, match="in another thread than it was compiled for"):
            found.features(pixels.float())
    finally:
        torch.set_num_threads(before)
