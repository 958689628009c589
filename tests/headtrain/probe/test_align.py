from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clinit.errors import CacheError, HeadError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.extract.cache.read import open_cache
from clinit.headtrain.probe.align import align, choose_views
from clinit.headtrain.probe.settings import AlignConfig
from clinit.headtrain.protocol.stream.source import Source, head_digest, read_source
from clinit.observer import Event, Progressed
from tests.headtrain.probe.digits import trained
from tests.headtrain.protocol.stream.made_caches import write_base, write_views

DIM, CLASSES = 6, 4
NAMES = tuple("abcd")
CONFIG = AlignConfig(epochs=3, batch_size=16, device="cpu")


def rows(count: int, seed: int) -> FeatureSet:
    labels = np.random.default_rng(seed).permutation(np.arange(count) % CLASSES)
    centres = 2 * np.random.default_rng(0).normal(size=(CLASSES, DIM))
    noise = np.random.default_rng(seed).normal(size=(count, DIM))
    return FeatureSet((centres[labels] + noise).astype(np.float16), labels, NAMES)


BASE = Source(rows(70, 1), rows(40, 2), path="base")
WEIGHT = np.random.default_rng(3).normal(size=(CLASSES, DIM)).astype(np.float32)
HEAD = Head(WEIGHT, np.zeros(CLASSES, np.float32), NAMES, "print")
NONE = FeatureSet(np.empty((0, DIM), np.float16), np.empty(0, np.int64), NAMES)


def mse(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The formula, a sample at a time."""
    total = torch.zeros(())
    for u, y in zip(logits, labels.tolist(), strict=True):
        others = sum((u[j] ** 2 for j in range(CLASSES) if j != y), torch.zeros(()))
        total = total + (15 * (u[y] - 30) ** 2 + others) / CLASSES
    return total / len(labels)


@pytest.mark.parametrize(("name", "loss"), [("mse", mse), ("ce", torch.nn.CrossEntropyLoss())])
def test_alignment_is_that_of_a_linear_layer_with_adamw_and_a_cosine(name: Any, loss: Any) -> None:
    expected = trained([BASE.train] * 3, WEIGHT, lr=1e-3, decay=0.05, batch=16, loss=loss)
    found = align(BASE, HEAD, replace(CONFIG, loss=name))
    np.testing.assert_allclose(found.weight, expected[:, :-1], atol=1e-5)
    np.testing.assert_allclose(found.bias, expected[:, -1], atol=1e-5)


def test_alignment_lowers_the_loss_and_the_head_contains_how_it_was_aligned() -> None:
    told: list[Event] = []
    found = align(BASE, HEAD, replace(CONFIG, epochs=40, lr=0.05), observer=told.append)
    facts: Any = found.alignment
    assert [(event.done, event.total) for event in told if isinstance(event, Progressed)] == [
        (epoch, 40) for epoch in range(1, 41)
    ]
    assert facts["loss_by_epoch"][-1] < 0.2 * facts["loss_by_epoch"][0]
    assert (facts["views"], facts["view_seed"], facts["train_rows"]) == (0, None, 70)
    assert facts["top1_after"] > facts["top1_before"]
    logits = BASE.val.features.astype(np.float32) @ found.weight.T + found.bias
    assert facts["top1_after"] == pytest.approx(100 * (logits.argmax(1) == BASE.val.labels).mean())
    assert (found.class_names, found.fingerprint) == (NAMES, "print")
    assert facts["started_from"] == head_digest(HEAD) != facts["digest"] == head_digest(found)


def test_a_base_smaller_than_a_batch_is_one_batch_and_needs_no_validation_rows() -> None:
    facts: Any = align(Source(rows(9, 1), NONE), HEAD, CONFIG).alignment
    assert facts["top1_before"] is facts["top1_after"] is None


@pytest.mark.parametrize(
    ("source", "changes", "kind", "remedy"),
    [
        (BASE, {"lr": 1e30}, HeadError, "--lr"),
        (Source(NONE, NONE), {}, CacheError, "clinit cache show"),
    ],
)
def test_what_cannot_be_aligned_is_refused(
    source: Source, changes: dict[str, Any], kind: Any, remedy: str
) -> None:
    with pytest.raises(kind) as caught:
        align(source, HEAD, replace(CONFIG, **changes))
    assert remedy in caught.value.remedy


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_base(tmp_path_factory.mktemp("caches") / "base")
    write_views(folder, 3)
    return folder


@pytest.mark.parametrize("number", [1, 2, 3])
def test_epochs_train_on_the_views_in_turn(cache: Path, number: int) -> None:
    source, config = read_source(cache), replace(CONFIG, loss="ce", epochs=5)
    views = open_cache(cache).views
    assert source.head is not None
    head = replace(source.head, weight=source.head.weight / 100, bias=0 * source.head.bias)
    found = align(source, head, config, choose_views(open_cache(cache), number))
    epochs = [views[epoch % number].load() for epoch in range(5)]
    expected = trained(epochs, head.weight, lr=1e-3, decay=0.05, batch=16)
    np.testing.assert_allclose(found.weight, expected[:, :-1], atol=1e-5)
    facts: Any = found.alignment
    told = [facts[name] for name in ("views", "view_seed", "augmentation", "train_rows")]
    assert told == [number, 1, "made", 199]
