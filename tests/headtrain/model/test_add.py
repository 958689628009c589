"""Rows that stand for old classes, real or drawn, and rows that are added to them."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES
from clinit.headtrain.heads.start.beside_guesses import PARTS, lambda_beside_guesses
from clinit.headtrain.heads.start.calibrate import norm_factor, together
from clinit.headtrain.heads.start.calibration_set import CalibrationSet
from clinit.headtrain.heads.start.initialise import initialise
from clinit.headtrain.heads.start.left_out import without_parts
from clinit.headtrain.heads.start.new_rows import NewClasses, raw_rows
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics, Weighting
from clinit.headtrain.heads.temperature import PRIOR, temperature_of
from clinit.headtrain.model.add import add
from clinit.headtrain.model.addition import Addition
from clinit.headtrain.model.export import TrainedRun, export_model
from clinit.headtrain.model.growth import Growth, grown_head
from clinit.headtrain.model.guesses import ShrunkCovariance, guessed_population, guessed_variances
from clinit.headtrain.model.inputs import features_in
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.model import Model, load_model
from clinit.headtrain.model.old_rows import OldRows, drawn_from, old_rows
from clinit.headtrain.model.settings import AddConfig
from clinit.headtrain.protocol.stream.source import Source
from clinit.observer import ignore

NAMES = ("a", "b", "c", "d")
WIDTH, CLASSES = 8, 40


def features_of(counts: tuple[int, ...], names: tuple[str, ...], seed: int = 0) -> FeatureSet:
    rng, labels = np.random.default_rng(seed), np.repeat(np.arange(len(counts)), counts)
    rows = rng.normal(size=(len(labels), 3)) + 4 * rng.normal(size=(len(counts), 3))[labels]
    return FeatureSet(rows.astype(np.float32), labels, names)


HEAD = Head(
    np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32), np.zeros(4, np.float32), NAMES
)
NEW = features_of((6, 6), ("x", "y"), seed=1)


def test_the_best_rows_of_each_class_are_taken() -> None:
    """Class a is in the cache, of b and c there are statistics, of d the head alone."""
    memory = Memory.of(features_of((0, 14, 5, 0), NAMES), {})
    given = features_of((3, 4), ("other", "a"), seed=2)
    old = old_rows(HEAD, memory, NEW, given, None)
    rows = old.rows
    a, b, c, d = (rows.features[rows.labels == row] for row in range(4))
    np.testing.assert_array_equal(a, given.features[given.labels == 1])
    drawn = drawn_from(memory, np.array([1, 2]), guessed_variances(NEW), len(b) // 2)
    np.testing.assert_array_equal(np.concatenate([b, c]), drawn.rows[0])
    assert len(d) >= 2
    counts = [int(part.split()[0].replace(",", "")) for part in old.kind.split(", ")]
    assert counts == [4, len(b) + len(c), len(d)]
    np.testing.assert_array_equal(old.known.rows.features, np.concatenate([a, b, c]))


def test_tested_images_never_allow_more_than_known_rows_do() -> None:
    labels = np.repeat(np.arange(4), 25)
    rows = HEAD.weight[labels] + np.random.default_rng(0).normal(size=(100, 3))
    old, model = FeatureSet(rows.astype(np.float32), labels, NAMES), Model(HEAD)
    amid = features_in(replace(NEW, features=0.2 * NEW.features)).arrive(model, 0.0, ignore)
    growth = Growth(model, model, amid, AddConfig(), "add")
    tests = [old.nothing(), *(replace(old, features=by * old.features) for by in (4, 0.1))]
    grown = [grown_head(replace(growth, old=Source(old, each)), ignore) for each in tests]
    none, few, many = (each.head.bias[-1] for each in grown)
    assert few < none == pytest.approx(many)


@pytest.mark.parametrize(("noise", "gives_room"), [(0.1, True), (2.0, False)])
@pytest.mark.parametrize("each", [60, 100, 200])
def test_few_images_protect_old_classes_but_give_little_of_their_room_away(
    each: int, noise: float, gives_room: bool
) -> None:
    """One of four classes is known."""
    model, random = Model(HEAD), np.random.default_rng(0)
    rows = (3 * HEAD.weight[0] + noise * random.normal(size=(each, 3))).astype(np.float32)
    old = FeatureSet(rows, np.zeros(each, dtype=np.int64), NAMES)
    images = features_in(NEW).arrive(model, 0.0, ignore)
    growth = Growth(model, model, images, AddConfig(), "add", Source(old, old.nothing()))
    grown = grown_head(growth, ignore)
    asked = grown_head(replace(growth, config=AddConfig(max_old_loss=1.0)), ignore)
    assert grown.share == pytest.approx((0.5 * min(1, each / 100)) ** 2)
    assert grown.bounded == pytest.approx(grown.share if gives_room else 0.5)
    assert grown.shift_at is not None
    moved = grown.shift_at(1.0)
    np.testing.assert_allclose((asked.head.bias - grown.head.bias)[4:], moved, atol=1e-4)
    assert moved > 0.01 if gives_room else moved < -0.01


def collapsed() -> tuple[Head, FeatureSet, np.ndarray]:
    """Return a collapsed head of classes around a centre, new images around another, the means."""
    rng = np.random.default_rng(0)
    means = 3 * rng.normal(size=(CLASSES, WIDTH))
    means -= means.mean(axis=0)
    weight = 0.5 * means
    common, middle = rng.normal(size=WIDTH), 2 * rng.normal(size=WIDTH)
    bias = 7.0 - weight @ middle  # all logits are equal at the middle
    labels = np.repeat(np.arange(60), 40)
    features = 3 * rng.normal(size=(60, WIDTH))[labels] + rng.normal(size=(len(labels), WIDTH))
    names = tuple(f"c{row}" for row in range(CLASSES))
    head = Head((weight + common).astype(np.float32), bias.astype(np.float32), names)
    new = FeatureSet(features.astype(np.float32), labels, tuple(map(str, range(60))))
    return head, new, means + middle


def test_the_class_means_behind_a_collapsed_head_are_found() -> None:
    head, new, means = collapsed()
    found = guessed_population(head, new)
    assert np.corrcoef(found.means.ravel(), means.ravel())[0, 1] > 0.95
    centre = means.mean(axis=0)
    assert np.linalg.norm(found.means.mean(axis=0) - centre) < 0.2 * np.linalg.norm(centre)
    # What all rows have in common does not count.
    moved = guessed_population(Head(head.weight + 5.0, head.bias + 3.0, head.class_names), new)
    np.testing.assert_allclose(found.means, moved.means, atol=1e-3)
    # Rows of added classes do not count, nor do copies of an image.
    weight, bias = (np.append(each, 9 * each[:1], axis=0) for each in (head.weight, head.bias))
    grown = guessed_population(Head(weight, bias), new, CLASSES)
    np.testing.assert_allclose(grown.means[:CLASSES], found.means, rtol=1e-6)
    few = FeatureSet(new.features[:200:40], np.arange(5), new.class_names[:5])
    odd = FeatureSet(few.features * np.array([[9], *[[1]] * 4]), few.labels, few.class_names)
    usual, wider = (guessed_population(head, each).means.std() for each in (few, odd))
    assert wider < 1.5 * usual, "one odd image"
    each = np.arange(len(new.labels))
    once, copied = (
        FeatureSet(new.features[rows], new.labels[rows], new.class_names, rows)
        for rows in (each, np.append(each, [0] * 9))
    )
    one, other = (
        old_rows(head, None, images, images.nothing(), None).rows.features
        for images in (once, copied)
    )
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def tamed(rows: np.ndarray) -> np.ndarray:
    near, centre = rows, rows.mean(axis=0)
    for _ in range(3):
        far = 1.22 * np.median([np.linalg.norm(row - centre) for row in rows])
        near = centre + [off * min(1, far / (np.linalg.norm(off) or 1)) for off in rows - centre]
        centre = near.mean(axis=0)
    return near


@pytest.mark.parametrize("counts", [(1,), (4,), (1, 1, 1), (2, 1, 1), (2, 2), (3, 9, 0, 5)])
def test_guessed_classes_have_their_formulas(counts: tuple[int, ...]) -> None:
    new, total = features_of(counts, tuple("vwxyz"[: len(counts)])), sum(counts)
    found, rows = guessed_population(HEAD, new), tamed(new.features.astype(np.float64))
    variance = rows.var(axis=0)
    unit = np.sqrt((total * variance + 5 * (variance.mean() or 1.0)) / (total + 5))
    classes = [rows[new.labels == row] / unit for row, count in enumerate(counts) if count]
    number, own = len(classes), np.array([each.mean(axis=0) for each in classes])
    offsets, each = own - own.mean(axis=0), np.array([1 / len(rows) for rows in classes])
    within, more = [rows - rows.mean(axis=0) for rows in classes if len(rows) > 1], total - number
    apart = np.concatenate([*within, np.sqrt(2 / number / (each + 0.3))[:, None] * offsets])
    weight = HEAD.weight * unit - (HEAD.weight * unit).mean(axis=0)
    ridge = 0.5 * np.square(weight).sum() / len(weight) * np.eye(3)
    kept = np.linalg.solve(weight.T @ weight + ridge, weight.T @ weight)
    step = kept @ own.mean(axis=0)  # no biases
    covariance, usual = np.eye(3), np.square(own).sum() / 3
    if total > 1:
        freedom, usual = more + 2 / number * (number - 1), 1.0
        covariance = ledoit_wolf(apart, assume_centered=True)[0] * len(apart) / freedom
    trace = np.trace(covariance)
    np.testing.assert_allclose(guessed_variances(new), unit**2 * usual * trace / 3, rtol=1e-5)
    squares = (len(weight) * np.square(weight).mean(axis=0) + 20 * np.square(weight).mean()) / 24
    along, middle = weight / np.sqrt(squares), own.mean(axis=0) - step
    size = np.sqrt(np.mean([np.var(weight @ row) for each in classes for row in each]))
    along *= 4.5 * size / np.mean([v @ u for v, u in zip(weight, along, strict=True)])
    far = np.mean([np.square(row - middle).sum() for each in classes for row in each])
    shrunk = min(1, np.sqrt(far / np.square(along).sum(axis=1).mean()))
    np.testing.assert_allclose(found.means / unit, middle + shrunk * along, rtol=1e-4, atol=1e-5)
    rounded = 0.1 * covariance + 0.9 * trace / 3 * np.eye(3)
    size *= 1.5 * shrunk * np.sqrt(1 + (1.5 / total) ** 4)
    rounded *= size**2 / np.mean([v @ rounded @ v for v in weight])
    np.testing.assert_allclose(found.own.within(np.ones(3)), rounded, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("rows", [0, 2, 6, 30])
def test_rows_of_any_number_of_directions_have_their_covariance(rows: int) -> None:
    spread = ShrunkCovariance(np.random.default_rng(0).normal(size=(rows, 16)), 0.3)
    found, unit = spread.spread(4 * np.eye(16, dtype=np.float32)), np.ones(16)
    expected = spread.factor.T @ spread.factor + 0.3 * np.eye(16)
    np.testing.assert_allclose(found.T @ found / 16, expected, atol=1e-4)
    np.testing.assert_allclose(spread.within(unit), expected, atol=1e-12)
    assert spread.trace == pytest.approx(np.trace(expected))


@pytest.mark.parametrize("weighting", get_args(Weighting))
def test_statistics_are_those_that_rows_were_drawn_from(weighting: Weighting) -> None:
    """One class is given, one remembered, all others are guessed."""
    head, new, _ = collapsed()
    given = FeatureSet(new.features[:40], np.zeros(40, dtype=np.int64), ("c0",))
    memory = Memory.of(FeatureSet(new.features[40:80], np.full(40, 3), head.class_names or ()), {})
    old = old_rows(head, memory, new, given, None)
    rows, stop = old.rows, CLASSES + 58
    features = np.concatenate([rows.features, new.features[80:90], new.features[100:]])
    labels = np.append(rows.labels, np.append(new.labels[80:90], new.labels[100:]) + CLASSES - 2)
    groups = np.minimum(np.arange(len(labels)), len(labels) - 3)  # the last three are one
    grown = Rows(np.zeros((stop, WIDTH)), np.zeros(stop))
    data = NewClasses(features, labels, grown, CLASSES, stop, groups=groups, drawn=old)
    anew = old.anew(data, np.arange(len(labels)) % 7 > 0)
    assert isinstance(anew.drawn, OldRows)
    for each, of in ((data, old), (anew, anew.drawn)):
        found, shares = each.statistics(weighting), each.shares
        totals, means, within = each.counts, np.zeros((stop, WIDTH)), np.zeros((stop, 8, 8))
        for drawn in of.drawn:
            totals[drawn.classes] = drawn.images
            means[drawn.classes], within[drawn.classes] = drawn.means, drawn.covariance
        for row in (0, *range(CLASSES, stop)):
            own = each.labels == row
            means[row] = np.average(each.features[own], axis=0, weights=shares[own])
            around = each.features[own] - means[row]
            within[row] = (shares[own, None] * around).T @ around / shares[own].sum()
        parts = totals / totals.sum() if weighting == "sample" else np.full(stop, 1 / stop)
        around = means - parts @ means
        covariance = np.tensordot(parts, within, 1) + (parts[:, None] * around).T @ around
        np.testing.assert_array_equal(found.totals, totals)
        np.testing.assert_allclose(found.class_means, means, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found.total_covariance, covariance, rtol=1e-5, atol=1e-5)
    assert not np.isin(anew.features[anew.labels == 1], features).any()  # another guess
    known = anew.features[np.isin(anew.labels, [0, 3])]
    assert 0 < np.isin(known, rows.features).all(axis=1).sum() == len(known) <= 100


def beside_guesses(head: Head, images: np.ndarray, labels: np.ndarray) -> NewClasses:
    new = FeatureSet(images, labels, ("v", "w", "x", "y", "z"))
    old = old_rows(head, None, new, new.nothing(), None)
    both = np.append(old.rows.features, images, 0), np.append(old.rows.labels, CLASSES + labels)
    grown = Rows(np.pad(head.weight, ((0, 5), (0, 0))), np.pad(head.bias, (0, 5)))
    return NewClasses(*both, grown, CLASSES, CLASSES + 5, drawn=old)


@pytest.mark.parametrize("each", [2, 5])
def test_the_rows_that_judge_an_image_have_not_seen_it(each: int) -> None:
    head, new, _ = collapsed()
    some = (np.arange(200) % 40 < each) & (np.arange(200) < 161)  # the last class has one image
    features, labels = new.features[:200][some], new.labels[:200][some]
    judging, start = [], Start(init="fitted")
    for moved, known in ((0.0, dict[Any, Any]()), (30.0, dict[Any, Any]())):
        features[0] += moved
        data = beside_guesses(head, features, labels)
        sample, statistics = CalibrationSet.of(data, LOSSES["ce"], "auto"), data.statistics()
        ((lam, curve, rest),) = together([lambda_beside_guesses(start, sample, statistics, known)])
        eigenvalues = np.linalg.eigvalsh(statistics.total_covariance)
        decades = np.log10(curve.lams / ((1 + (3 / len(labels)) ** 2) * eigenvalues.mean()))
        costs = 4 * each / 0.2 * np.array(curve.errors) + decades**2 / 2  # 0.2: weight of new rows
        assert lam == curve.lams[best := np.argmin(costs)]
        assert 0 < best < len(costs) - 1 or not -2.5 < decades[best] < 0.5  # neighbours are dearer
        (own,) = (p for p in without_parts(sample, PARTS) if p.judged[-len(labels)])
        whole = raw_rows(start, data, statistics, lam)
        lead = features[-1] - statistics.class_means[:CLASSES].mean(axis=0)
        logits = whole.weight @ features[-1] + whole.bias
        logits[-1] -= 0.75 * whole.weight[-1] @ lead
        np.testing.assert_allclose(known[lam][-1], logits, rtol=1e-5)
        once, again = (raw_rows(start, own.data, own.data.statistics(), by) for by in (1.0, lam))
        np.testing.assert_array_equal(again.weight, rest[own.number].weight)
        judging.append(once.weight)
    np.testing.assert_array_equal(*judging)


def test_if_left_out_images_are_unlike_their_class_no_lambda_is_better() -> None:
    head, new, _ = collapsed()
    away, labels = 9 * np.eye(WIDTH)[:5], np.arange(10) % 5
    images = (new.features.mean(axis=0) + np.append(away, -away, 0)).astype(np.float32)
    data = beside_guesses(head, images, labels)
    given = CalibrationSet.of(data, LOSSES["ce"]), data.statistics(), dict[Any, Any]()
    ((lam, curve, _),) = together([lambda_beside_guesses(Start(init="fitted"), *given)])
    assert (lam, len(set(curve.errors))) == (curve.lams[1], 1)


def test_next_to_many_classes_rows_get_norms_of_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    head, new, _ = collapsed()
    data, found = beside_guesses(head, new.features[np.r_[0, 40:162:40]], np.arange(5)), []
    for few in (CLASSES, 16):
        monkeypatch.setattr(sys.modules[initialise.__module__], "FEW", few)
        found.append(initialise(Start(init="least-square", lam="auto"), data))
    (least, mixed), part = found, np.log(CLASSES / 16) / np.log(100 / 16)
    rows = raw_rows(Start(init="least-square"), data, data.statistics(), least.lam)
    expected = (1 - part) * least.factor + part * norm_factor(rows, data), (1 - part) * least.shift
    assert (mixed.factor, mixed.shift) == pytest.approx(expected)
    mean = np.linalg.eigvalsh(data.statistics().total_covariance).mean()
    assert least.lam == pytest.approx((1 + (3 / 5) ** 2) * mean, rel=0.05)  # of two digits


def remembered(each: int) -> Memory:
    rng, labels = np.random.default_rng(2), np.repeat(np.arange(4), each)
    features = rng.normal(size=(4 * each, 5)) @ rng.normal(size=(5, 5))
    features += 3 * rng.normal(size=(4, 5))[labels]
    return Memory.of(FeatureSet(features.astype(np.float32), labels, tuple("abcd")), {})


@pytest.mark.parametrize("each", [1, 30])
def test_with_enough_rows_means_and_covariance_are_that_of_statistics(each: int) -> None:
    memory = remembered(each)
    drawn = drawn_from(memory, np.arange(4), np.arange(1.0, 6.0), 2)
    found = ClassStatistics.of(*drawn.rows)
    np.testing.assert_allclose(found.class_means, memory.means, atol=1e-6)
    more = 4 * (each - 1)
    expected = (more * memory.population_covariance + 20 * np.diag([1, 2, 3, 4, 5])) / (more + 20)
    np.testing.assert_allclose(found.within_covariance, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(drawn.covariance, expected)


def test_rounded_covariances_may_have_negative_eigenvalues() -> None:
    memory = replace(remembered(30), covariance=np.diag([1.0, 2, 3, 4, -500]))
    drawn = drawn_from(memory, np.arange(4), np.full(5, 1e-3), 2)
    within = ClassStatistics.of(*drawn.rows).within_covariance
    np.testing.assert_allclose(within, drawn.covariance, rtol=1e-4, atol=1e-4)
    assert np.linalg.eigvalsh(drawn.covariance).min() > -1e-9


def added(model: Model, source: Source, config: AddConfig, **purpose: Any) -> Addition:
    """Add features to a model."""
    return add(model, features_in(source), config, **purpose)


def arriving() -> Source:
    """Return features of two new classes, with some held out."""
    rng, labels = np.random.default_rng(0), np.repeat([0, 1], 12)
    rows = (rng.standard_normal((24, 12)) + np.eye(12)[labels]).astype(np.float16)
    every, train = FeatureSet(rows, labels, ("x", "y")), np.arange(24) % 3 > 0
    return Source(every.part(train), every.part(~train))


def test_added_rows_are_those_beside_the_rows_as_trained(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clinit.headtrain.heads.temperature.LEAST_ROWS", 10)
    with monkeypatch.context() as patch:
        patch.setattr(TrainedRun, "temperature", lambda run: (None, ()))
        plain = export_model(tiny_run, tmp_path / "plain")
    divided, config = export_model(tiny_run, tmp_path / "divided"), AddConfig()
    one, other = (
        added(load_model(each.path, device="cpu"), arriving(), config).model
        for each in (plain, divided)
    )
    # The rows are the minimum of a loss of float32 products: around it the loss changes with the
    # square of the distance, so that float32 tells rows apart down to the root of its precision.
    known = np.sqrt(np.finfo(np.float32).eps)
    for part in ("weight", "bias"):
        divided_part, plain_part = (getattr(each.head, part) for each in (other, one))
        atol = known * np.abs(plain_part).max()
        np.testing.assert_allclose(divided_part, plain_part, rtol=0, atol=atol)
    memory = divided.model.memory
    assert memory is not None
    assert len(other.memory.held_out.labels) == 20 + 8
    before = divided.model.facts.temperature
    assert other.facts.temperature != before
    # Without tested rows of old classes the temperature stays; few classes count less.
    forgetful = replace(load_model(divided.path, device="cpu"), memory=None)
    assert added(forgetful, arriving(), config).model.facts.temperature == before.unmeasured
    for count, enough, weight in ((1, 100, 0.4), (1, 8, 0.5), (3, 100, 1.0)):
        monkeypatch.setattr("clinit.headtrain.model.growth.ENOUGH", enough)
        some = memory.held_out.part(memory.held_out.labels < count)
        few = replace(forgetful, memory=replace(memory, held_out=some))
        grown, prior = added(few, arriving(), config).model, PRIOR / weight
        rows = grown.memory.held_out
        expected = temperature_of(grown.head, rows, prior=prior, before=before.value)
        assert grown.facts.temperature == expected
