"""Additions in two steps, and of two models, next to one addition of all images."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from clinit.errors import ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.repeats import joined
from clinit.headtrain.heads.temperature import Temperature
from clinit.headtrain.model.add import merge
from clinit.headtrain.model.addition import Addition
from clinit.headtrain.model.again import of_both, with_more
from clinit.headtrain.model.export import export_model
from clinit.headtrain.model.inputs import Arrived, features_in
from clinit.headtrain.model.memory import MOST_LEARNT, Memory
from clinit.headtrain.model.model import Model, load_model
from clinit.headtrain.model.network import engine_of
from clinit.headtrain.model.settings import AddConfig, AddInit
from clinit.headtrain.protocol.stream.source import Source
from clinit.observer import Event, ignore
from tests.headtrain.model.test_add import added

INITS = get_args(AddInit)


def images(names: str, start: int = 0, stop: int = 9, held_out: int = 0) -> Source:
    """Return some of the images of classes."""
    rows, labels = [], []
    for label, name in enumerate(names):
        rng = np.random.default_rng(ord(name))
        centre = 2 * rng.standard_normal(12)
        rows.append((centre + rng.standard_normal((stop + held_out, 12)))[start:])
        labels.append(np.full(len(rows[-1]), label))
    every = FeatureSet(np.concatenate(rows).astype(np.float16), np.concatenate(labels), (*names,))
    aside = np.concatenate([np.arange(len(each)) for each in rows]) >= stop - start
    train, val = (
        FeatureSet(every.features[p], every.labels[p], (*names,)) for p in (~aside, aside)
    )
    return Source(train, val)


@pytest.fixture(scope="module")
def model(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Return a model of a to e that remembers, of e nothing."""
    folder = tmp_path_factory.mktemp("exported") / "base"
    found = load_model(export_model(tiny_run, folder).path, device="cpu")
    rows = images("abcd", stop=20, held_out=3)
    named = [each.named(found.facts.class_names) for each in (rows.train, rows.val)]
    return replace(found, memory=Memory.of(named[0], found.depends_on, held_out=named[1]))


def add(model: Model, source: Source, config: AddConfig) -> Addition:
    return added(model, source, config)


def more(model: Model, source: Source, config: AddConfig, old: Source | None = None) -> Model:
    return added(model, source, config, kind="more", old=old).model


def arrived(model: Model, source: Source) -> Arrived:
    return features_in(source).arrive(model, 0, ignore)


def at_once(steps: list[Source], names: str) -> Source:
    """Return the images of several steps in one."""
    train, val = ([getattr(s, part).named((*names,)) for s in steps] for part in ("train", "val"))
    return Source(joined(train, (*names,)), joined(val, (*names,)))


def check_equal(found: Model, expected: Model) -> None:
    """Check names, rows and statistics, in whatever order of the classes."""
    assert {*found.facts.class_names} == {*expected.facts.class_names}
    order = [found.facts.class_names.index(name) for name in expected.facts.class_names]
    found = found.of_rows(order)
    for name in ("weight", "bias"):
        one, other = (getattr(each.head, name) for each in (found, expected))
        # L-BFGS ends before it converges, so rounding grows.
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4 * np.abs(other).max(initial=1))
    one, other = (
        each.facts.temperature or Temperature(value=1, fitted_rows=0, measured_rows=0)
        for each in (found, expected)
    )
    assert one.value == pytest.approx(other.value, rel=1e-4)  # as the rows that it is fitted to
    assert one.fitted_rows == other.fitted_rows
    one, other = found.memory, expected.memory
    np.testing.assert_array_equal(one.counts, other.counts)
    assert (one.exact, one.averaged) == (other.exact, other.averaged)
    assert one.freedom == pytest.approx(other.freedom)
    for name in ("means", "covariance"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5)
    assert one.held_out.counts().tolist() == other.held_out.counts().tolist()


def test_the_memory_before_classes_came_is_that_of_the_others_alone() -> None:
    old, new = images("abcd", stop=20).train, images("xy", stop=7).train
    memory = Memory.of(old, {}).joined(Memory.of(new, {}, added=True))
    found = memory.before(memory.learnt.named(("y", "x")))
    own = [np.cov(old.features[old.labels == c].T.astype(float), bias=True) for c in range(4)]
    np.testing.assert_allclose(found.covariance, sum(own) / 4, atol=1e-6)
    assert (found.class_names, found.averaged, found.exact) == (old.class_names, 4, True)
    assert found.freedom == pytest.approx(1 - 1 / 20)
    fewer = memory.of_rows([1, 2, 3, 4, 5]).before(new)
    np.testing.assert_allclose(fewer.covariance, sum(own) / 4, atol=1e-6)
    assert (fewer.averaged, fewer.exact) == (4, False)  # it is of a too
    single = Memory.of(images("abcd", stop=1).train, {}).joined(Memory.of(new, {})).before(new)
    assert single.freedom == np.abs(single.covariance).max() == 0


def test_left_out_images_stay_unseen_after_an_old_class_was_removed() -> None:
    rng, names = np.random.default_rng(0), tuple(map(str, range(68)))
    centres = 0.5 * rng.normal(size=(68, 48))

    def drawn(start: int, stop: int, count: int) -> FeatureSet:
        labels = np.repeat(np.arange(start, stop), count)
        rows = centres[labels] + rng.normal(size=(len(labels), 48))
        return FeatureSet(rows.astype(np.float32), labels, names)

    model = Model(Head(centres[:60], -0.5 * (centres[:60] ** 2).sum(axis=1), names[:60]))
    model = model.add(drawn(60, 68, 6)).model.remember(drawn(0, 60, 1)).remove(["9"])
    found = model.add(drawn(60, 62, 2), more=True)
    unseen = found.model.evaluate(drawn(60, 68, 100)).top1()
    own, others = (each.correct / each.total for each in (found.new, unseen))
    assert abs(own - others) < 2 * np.sqrt(0.25 / found.new.total)


@pytest.mark.parametrize(("init", "named"), [("fitted", "xyz"), *((init, "y") for init in INITS)])
def test_images_in_two_steps_give_the_rows_of_one(model: Model, init: AddInit, named: str) -> None:
    config = AddConfig(init=init)
    first = add(model, images("xyz", 0, 5), config).model
    found = more(first, images(named, 5, 9, held_out=2), config)
    whole = at_once([images("xyz", 0, 5), images(named, 5, 9, held_out=2)], "xyz")
    check_equal(found, add(model, whole, config).model)
    assert found.facts.class_names == first.facts.class_names
    assert found.facts.history[-1].images == dict.fromkeys("xyz", 5) | dict.fromkeys(named, 9)


@pytest.mark.parametrize("known", ["statistics", "nothing", "no class"])
def test_one_class_after_the_other_has_the_rows_of_one_addition(model: Model, known: str) -> None:
    model = model if known == "statistics" else replace(model, memory=None)
    found = model = model.of_rows([]) if known == "no class" else model
    steps = [images("xw"), images("v", held_out=2), images("y")]
    steps[1] = replace(steps[1], train=replace(steps[1].train, groups=np.arange(9) // 2))
    for step, price in zip(steps, (None, 2.0, None), strict=True):  # the last price stays
        before, addition = found.facts, found.add(step, max_old_loss=price)
        found = addition.model
    whole = model.add(at_once(steps, "xwvy"), max_old_loss=2.0).model
    check_equal(found, whole)
    assert len({str(e.memory.learnt.groups[18:27]) for e in (found, whole) if e.memory}) == 1
    assert ("The other 5 classes of" in addition.lines()[0]) == (known == "nothing")
    assert addition.model.facts.leaves_untested == (known != "no class")
    tasks, change = [each.task for each in found.facts.history[-3:]], addition.change
    assert [*found.facts.tasks[-4:]] == [tasks[0], *tasks]
    assert (change.classes, [*change.images.values()], change.data["earlier"]) == (("y",), [9], 3)
    # The same images, each without itself or held out, are tested after a step and before the next.
    assert addition.old_before + addition.earlier_before == before.history[-1].accuracy["all"]
    assert change.accuracy["earlier"].total == addition.earlier_before.total == 20


@pytest.mark.parametrize("known", [True, False])
def test_names_and_the_order_of_images_change_nothing(model: Model, known: bool) -> None:
    model, given = model if known else replace(model, memory=None), images("xyz", 0, 4).train
    given.features[4:7] = given.features[:3]  # images in two classes
    other = replace(given.taken(np.arange(12)[::-1]), class_names=(*"kzj",))
    one, two = (model.add(each).model.head for each in (given, other.named((*"jkz",))))
    np.testing.assert_array_equal(one.weight[5:], two.weight[[6, 7, 5]])
    np.testing.assert_array_equal(one.bias[5:], two.bias[[6, 7, 5]])


def test_classes_that_came_by_other_settings_stay_as_they_are(model: Model) -> None:
    first = add(model, images("xy", 0, 5), AddConfig()).model
    second = add(first, images("vw"), AddConfig(new_share=0.5)).model
    found = more(second, images("x", 5, 9), AddConfig())
    assert found.facts.class_names == second.facts.class_names
    changed = (found.head.weight != second.head.weight).any(axis=1)
    assert changed.tolist() == [False] * 5 + [True] * 2 + [False] * 2
    now, then = found.facts.tasks[-4:], second.facts.tasks[-4:]
    assert now == (then[-1] + 1,) * 2 + then[2:]


def test_rows_come_from_a_cache_too(model: Model) -> None:
    config = AddConfig()
    expected = add(model, images("xy"), config).model
    first = add(model, images("xy", 0, 5), config).model
    assert first.memory is not None
    forgetful = replace(first, memory=replace(first.memory, learnt=first.memory.learnt.nothing()))
    check_equal(more(forgetful, images("xy", 5, 9), config, images("xyz", 0, 5)), expected)
    # What is there already counts once.
    check_equal(more(first, images("xy"), config), expected)
    # A copy of an image of another class is an image.
    copies = replace(images("y", 0, 5).train, class_names=("x",))
    another = arrived(first, Source(copies, copies.nothing()))
    assert with_more(first, another, None)[1].train.counts().tolist() == [10, 5]
    # A class of the base is solved by itself.
    base = replace(model, memory=None)
    left, every, _ = with_more(base, arrived(base, images("a", 5, 9)), images("ab", 0, 5))
    assert left.facts.class_names == tuple("bcde")
    np.testing.assert_array_equal(every.train.features, images("a").train.features)


def merged(one: Model, other: Model, config: AddConfig) -> Model:
    return merge(one, other, config).model


@pytest.mark.parametrize("init", INITS)
def test_two_halves_merged_give_the_rows_of_all_at_once(model: Model, init: AddInit) -> None:
    config, parts = AddConfig(init=init), (images("wx", held_out=2), images("yz", held_out=2))
    one, other = (add(model, each, config).model for each in parts)
    expected = add(model, images("wxyz", held_out=2), config).model
    found = merged(one, other, config)
    check_equal(found, expected)
    assert found.facts.class_names == expected.facts.class_names
    assert [each.action for each in found.facts.history] == ["run", "add", "add", "merge"]
    # One that remembers the shared classes is enough.
    forgetful = add(replace(model, memory=None), parts[0], config).model
    check_equal(merged(forgetful, other, config), expected)


def changed(model: Model, **kinds: Any) -> Model:
    """Return a model whose names are `renamed`, and without the classes `removed`."""
    for kind, names in kinds.items():
        model = {"renamed": model.rename, "removed": model.remove}[kind](names)
    return model


@pytest.mark.parametrize(
    ("mine", "theirs", "names", "notes"),
    [
        ({"renamed": {"x": "X"}}, {"removed": ["y"]}, ("abcdeX", "abcdex"), 2),
        ({"removed": ["y"]}, {"renamed": {"y": "Y"}}, ("abcdex", "abcdex"), 1),
        ({"renamed": {"y": "Y"}, "removed": ["Y", "a"]}, {}, ("bcdex", "bcdex"), 1),
        ({"renamed": {"x": "y", "y": "x"}}, {}, ("abcdeyx", "abcdexy"), 2),
        ({"renamed": {"b": "B"}}, {"renamed": {"c": "C"}}, ("aBcdexy", "abCdexy"), 2),
    ],
)
def test_a_class_is_one_under_two_names_and_stays_removed(
    model: Model, mine: Any, theirs: Any, names: tuple[str, str], notes: int
) -> None:
    first = add(model, images("xy"), AddConfig()).model
    one, other = changed(first, **mine), changed(first, **theirs)
    for pair, expected in zip(((one, other), (other, one)), names, strict=True):
        left, images_, first, told = of_both(*pair)
        assert {*left.facts.class_names} == {*expected}
        assert images_ is None
        assert len(told) == notes
        assert [each.action for each in first.facts.history][:2] == ["run", "add"]


def test_the_same_images_in_two_additions_are_one_class(model: Model) -> None:
    config = AddConfig()
    one, other = (add(model, images(names), config).model for names in ("xy", "yz"))
    expected = add(model, images("xyz"), config).model
    check_equal(merged(one, other, config), expected)
    other, warned = changed(other, renamed={"y": "Y"}), list[Event]()
    found = merge(one, other, config, observe=warned.append).model
    assert "are one class" in str(warned[0])
    assert "different classes" not in str(warned)
    assert found.facts.class_names == tuple("abcdexyz")
    check_equal(found, expected)
    merge(one, changed(other, renamed={"z": "X"}), config, observe=warned.append)
    assert "different classes: " in str(warned)
    # What one of them removes comes from the other's own addition.
    without = changed(one, removed=["y"])
    assert "y" not in of_both(without, other)[0].facts.class_names
    notes = of_both(without, changed(other, renamed={"Y": "y"}))[3]
    assert "has it from an addition of its own" in notes[0]


def test_first_heads_are_solved_anew_and_merged_too(model: Model) -> None:
    empty, config = replace(model.of_rows([]), memory=None), AddConfig()
    one, other = (add(empty, images(names, 0, 5), config).model for names in ("wx", "yz"))
    one, other = (more(each, images(n, 5), config) for each, n in ((one, "wx"), (other, "yz")))
    check_equal(one, add(empty, images("wx"), config).model)
    found = merged(one, other, config)
    check_equal(found, add(empty, images("wxyz"), config).model)
    assert found.facts.history[-1].action == "merge"


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("names", ["x", "xy", "xyz"])
@pytest.mark.parametrize("has_head", [False, True])
def test_every_number_of_images_and_classes_makes_rows(
    model: Model, has_head: bool, names: str, count: int, copies: bool
) -> None:
    source, before = images(names, 0, count), model if has_head else model.of_rows([])
    if copies:  # they count as one image
        rows = source.train.features[source.train.labels * count]
        source = Source(replace(source.train, features=rows), source.val)
    if not has_head and len(names) == 1:
        with pytest.raises(ModelError, match="its only class"):
            add(before, source, AddConfig())
        return
    added = add(before, source, AddConfig())
    assert added.model.facts.class_names == (*before.facts.class_names, *names)
    assert np.isfinite(added.model.head.weight).all()
    assert (added.new.total > 0) == (count > 1 and not copies)
    assert np.isfinite(add(added.model, images("w", 0, count), AddConfig()).model.head.weight).all()


def test_what_would_not_be_exact_is_refused(model: Model) -> None:
    config = AddConfig(init="class-mean")
    many = add(model, images("xy", stop=MOST_LEARNT + 1), config).model
    first, other, apart = (
        add(model, images(*each), config).model
        for each in (("xy", 0, 5), ("yz", 1, 5), ("zv", 0, 5))
    )
    all_twice = FeatureSet.joined(2 * [images("xy", stop=MOST_LEARNT + 1).train], ("x", "y"))
    twice = Source(all_twice, all_twice.nothing())
    moved = replace(apart, linear=replace(apart.head, weight=apart.head.weight + 0.1))
    long = np.eye(7, 1, dtype=np.float32) * 1e7
    pair = (replace(m, linear=replace(m.head, weight=m.head.weight + long)) for m in (first, other))
    transform = replace(model.need_engine().transform, mean=(0.1, 0.2, 0.3))
    foreign = replace(apart, engine=replace(engine_of(apart), transform=transform))
    cases: dict[str, Callable[[], object]] = {
        "all of these 5 rows already": lambda: with_more(
            first, arrived(first, images("x", 0, 5)), None
        ),
        "of 2 classes (x, y)": lambda: with_more(
            many, arrived(many, images("x")), images("xy", 100, MOST_LEARNT + 101)
        ),
        "training images of 2 classes (x, y)": lambda: with_more(
            many, arrived(many, images("x")), twice
        ),
        "rows of 1 class (y)": lambda: of_both(first, other),
        "different rows of 1 class (y)": lambda: of_both(*pair),
        "rows of 5 classes": lambda: of_both(first, moved),
        "images of 2 classes (x, y)": lambda: of_both(replace(first, memory=None), apart),
        "differ in transform": lambda: of_both(first, foreign),
    }
    for fact, call in cases.items():
        with pytest.raises(ModelError, match=re.escape(fact)):
            call()
