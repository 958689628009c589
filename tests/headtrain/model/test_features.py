"""Models that are a head alone: classes are added from features, by command and from Python."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

import clinit
from clinit.errors import ClinitError, HeadError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head, Top1, read_head
from clinit.headtrain.heads.linear import NEVER
from clinit.headtrain.model import growth
from clinit.headtrain.model.inputs import held_out, similar_names
from clinit.headtrain.model.model import Model, load_model
from clinit.headtrain.model.old_rows import old_rows
from tests.cli.calls import call, done, refused, unframed

DIM, OLD, NEW = 6, ("ant", "bee", "cat"), ("dog", "elk")
CENTRES = 5 * np.random.default_rng(0).normal(size=(5, DIM))


def drawn(names: tuple[str, ...], count: int, seed: int) -> FeatureSet:
    """Return features of some of the classes, around their centres."""
    labels = np.repeat(np.arange(len(names)), count)
    centres = CENTRES[[(OLD + NEW).index(name) for name in names]]
    noise = np.random.default_rng(seed).normal(size=(len(labels), DIM))
    return FeatureSet((centres[labels] + noise).astype(np.float32), labels, names)


def saved(path: Path, rows: FeatureSet) -> Path:
    np.savez(path, features=rows.features, labels=np.array(rows.class_names)[rows.labels])
    return path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a head of old classes, arrays of old, new and test rows, and caches of them."""
    monkeypatch.chdir(tmp_path)
    centres = CENTRES[:3].astype(np.float32)
    clinit.save_head("head.npz", centres, -0.5 * (centres**2).sum(axis=1), list(OLD))
    for name, rows in (("old", drawn(OLD, 20, 1)), ("new", drawn(NEW, 20, 2))):
        saved(tmp_path / f"{name}.npz", rows)
        done("cache", "import", f"{name}.npz", "--backbone", "bytes", "--out", name)
    saved(tmp_path / "test.npz", drawn(OLD + NEW, 10, 3))
    np.save("rows.npy", drawn(OLD + NEW, 10, 3).features)
    return tmp_path


@pytest.mark.parametrize("out", ["grown.npz", "grown.safetensors", "grown"])
@pytest.mark.parametrize("given", ["new.npz", "new"])
def test_a_head_learns_classes_from_features(place: Path, given: str, out: str) -> None:
    printed = done("add", "head.npz", given, "--old", "old", "--out", out)
    assert f"{out} knows 5 classes. Your 40 rows, each tested without itself: 38 right" in printed
    assert "rows that may not belong to their class" in printed
    before, after = read_head(place / "head.npz"), load_model(out)
    np.testing.assert_allclose(after.head.weight[:3], before.weight, rtol=1e-6)
    assert (after.class_names, after.facts.tasks) == (OLD + NEW, (0, 0, 0, 1, 1))
    assert after.memory.counts.tolist() == [16] * 3 + [20] * 2
    assert after.facts.fingerprint.backbone == ("bytes" if given == "new" else None)
    assert load_model("head.npz").add("new", old="old").model.head.bias.tolist() == pytest.approx(
        after.head.bias.tolist()
    )
    told = json.loads(done("evaluate", out, "test.npz", "--against", "head.npz", "--json"))
    assert told["top1"] > 80
    assert told["against"]["lost"] <= 1
    rows = json.loads(done("predict", out, "rows.npy", "--top", "1", "--json"))
    right = [each["classes"][0]["class"] == (OLD + NEW)[n // 10] for n, each in enumerate(rows)]
    assert 2 * np.mean(right) * 50 == pytest.approx(told["top1"])
    shown = json.loads(done("model", "show", out, "--json"))
    assert [each["action"] for each in shown["history"]] == ["add"]
    assert shown["memory"]["classes"] == 5


def test_every_verb_takes_a_head(place: Path) -> None:
    done("remember", "head.npz", "old.npz", "--out", "remembers.npz")
    done("add", "remembers.npz", "new", "--out", "one")
    for option in ("--quiet", "--overwrite"):
        done("rename", "one", "dog=wolf", "--out", "two.npz", option)
    assert "the new model goes to two-export.npz" in done("export", "two.npz")
    done("remove", "two-export.npz", "ant", "--out", "three.safetensors")
    done("export", "three.safetensors", "--out", "four.npz")
    model = load_model("four.npz")
    assert model.class_names == ("bee", "cat", "wolf", "elk")
    assert [each.action for each in model.facts.history] == ["remember", "add", "rename", "remove"]
    assert "Next: clinit predict ./-new " in done("add", "remembers.npz", "new", "--out=-new")
    load_model("remembers.npz").add((drawn(NEW, 8, 9).features, ["fox"] * 16)).save("other.npz")
    shown = done("model", "merge", "one", "other.npz", "--out", "m") + done("model", "show", "m")
    assert load_model("m").class_names == (*OLD, *NEW, "fox")
    assert all(f" {each} " in shown for each in ("classes", "rows"))  # of 80 columns
    assert all(f" {each[:12]}" in shown for each in load_model("m").facts.parents)
    long, wrong = (call("add", "one", "new", "--out", out) for out in ("a" * 250, "m.NPZ"))
    assert "Choose a shorter name" in refused(long).remedy
    assert "ends in .npz or .safetensors" in unframed(wrong)
    assert "(no licence)" not in (place / "one" / "README.md").read_text()
    more = load_model("one").add(drawn(("dog",), 5, 11), more=True)
    assert more.change.images == {"dog": 25, "elk": 20}


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        ("add head.npz images --out x", "head.npz has features only"),
        ("predict head.npz image.png", "head.npz has features only"),
        ("evaluate head.npz images", "head.npz has features only"),
        ("export head.npz --out x --onnx", "head.npz has features only"),
        ("add head.npz rows.npy --out x", "has no labels"),
        ("add head.npz wide.npz --out x", "wide.npz: shape (4, 7)"),
        ("add known.npz other --out x", "differ in backbone (words / bytes)"),
        ("predict known.npz other", "differ in backbone (words / bytes)"),
        ("add head.npz other --old absent --out x", "absent"),
        ("add head.npz new --out old.npz --overwrite", "is not a head written by clinit"),
        ("add known.npz new --out known.npz --overwrite", "is only read"),
        ("add head.npz new --out x --batch-size 3", "--batch-size has no effect"),
        ("predict head.npz rows.npy image.png", "not both"),
        ("add head.npz nan.npz --out x", "contains no finite row"),
        ("model show damaged.npz", "has changed since it was written"),
    ],
)
def test_what_a_head_cannot_do_is_refused(place: Path, words: str, fact: str) -> None:
    (place / "images" / "dog").mkdir(parents=True)
    for name in ("images/dog/image.png", "image.png"):
        (place / name).write_bytes(b"no image")
    np.savez("wide.npz", features=np.ones((4, 7), np.float32), labels=["dog"] * 4)
    np.savez("nan.npz", features=np.full((4, 6), np.nan), labels=["dog"] * 4)
    done("cache", "import", "new.npz", "--backbone", "words", "--out", "other")
    load_model("head.npz").add("new").model.rename({"dog": "cow", "elk": "ewe"}).save("known.npz")
    arrays = dict(np.load("known.npz"))
    arrays["memory"][-9] ^= 1
    np.savez("damaged.npz", **arrays)
    result = call(*words.split())
    if result.exit_code == 2:
        assert fact in unframed(result)
    else:
        error = refused(result)
        assert isinstance(error, ClinitError)
        assert fact in f"{error} {error.remedy}"
    assert not (place / "x").exists()


def test_labels_may_be_in_a_file_of_their_own(place: Path) -> None:
    rows = drawn(NEW, 20, 2)
    np.save("x.npy", rows.features)
    np.save("y.npy", np.array(NEW)[rows.labels])
    done("add", "head.npz", "x.npy", "--labels", "y.npy", "--out", "one.npz")
    two = load_model("head.npz").add((rows.features.tolist(), [NEW[n] for n in rows.labels]))
    assert (load_model("one.npz").head.weight == two.model.head.weight).all()
    assert "of 40 rows of 2 classes right" in done(
        "evaluate", "one.npz", "x.npy", "--labels", "y.npy"
    )


def test_rows_that_are_not_finite_are_told_and_recorded(place: Path) -> None:
    rows = drawn(NEW, 20, 2)
    rows.features[3], rows.features[9] = np.nan, rows.features[5]
    added = load_model("head.npz").add(rows)
    assert added.change.images == {"dog": 19, "elk": 20}
    assert added.change.data["unreadable"]["first"] == [{"image": "row 3", "error": "not finite"}]
    assert added.notes()[0] == "1 row not finite: left out (row 3)"
    assert ["row 5", "row 9"] in [each["images"] for each in added.audit.repeated]


def test_what_is_useless_or_has_no_effect_is_told_and_recorded(place: Path) -> None:
    done("cache", "import", "new.npz", "--backbone", "bytes", "--split", "val", "--out", "new")
    done("cache", "import", "old.npz", "--backbone", "bytes", "--split", "val", "--out", "old")
    saved(place / "few.npz", drawn(OLD, 4, 1))
    saved(place / "ants.npz", drawn(OLD[:1], 4, 1))
    share = ("remember", "head.npz", "--hold-out", "0.5")
    for words, note in (
        (("add", "head.npz", "new", "--activation=sigmoid", "--old=ants.npz"), "1 of 3 have any"),
        (("add", "head.npz", "new", "--max-old-loss", "1"), "--max-old-loss has no effect: no"),
        ((*share, "old"), "--hold-out 0.5 has no effect: val is held out"),
        ((*share, "few.npz"), "--hold-out 0.5: no image of 3 of 3 classes is held out"),
    ):
        told = " ".join(done(*words, "--out", "x.npz", "--overwrite").split())
        (found,) = load_model("x.npz").facts.history[0].data["notes"]
        assert note in found
        assert found in told


def test_no_network_and_no_pytorch_is_loaded_for_features(place: Path) -> None:
    done("add", "head.npz", "new", "--old", "old", "--out", "grown.npz")
    code = """
import sys, clinit, numpy as np
model = clinit.load("grown.npz")
model.predict(np.load("rows.npy")), model.predict("new"), model.evaluate("test.npz")
model.remember("old").rename({"dog": "wolf"}).remove("ant").save("left.npz")
print(*{"torch", "timm", "torchvision"}.intersection(sys.modules))
model.rename({"dog": "cow", "elk": "ewe"}).add("new.npz")
print(*{"timm", "torchvision"}.intersection(sys.modules))
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "\n\n"


def test_sigmoids_are_independent_and_recorded(place: Path) -> None:
    options = ("--old", "old", "--activation", "sigmoid")
    done("add", "head.npz", "new", "--out", "grown.npz", *options)
    model, rows = load_model("grown.npz"), np.load("rows.npy")
    assert model.facts.activation == "sigmoid"
    (guess,) = model.predict(rows[0], top=1)[0].guesses
    divisor = 1.0 if model.facts.temperature is None else model.facts.temperature.value
    logits = (rows[0] @ model.head.weight.T + model.head.bias) / divisor
    assert guess.probability == pytest.approx(expit(logits.max()), rel=1e-4)
    rejection = clinit.Rejection.at_rate(model, "probability", 0.5)
    rejected = model.predict(rows, reject=rejection)
    for each in rejected:
        assert each.score is not None
        assert each.unknown == (each.score < rejection.threshold)
    assert "a sigmoid for each class" in done("model", "show", "grown.npz")
    softmax = load_model("head.npz").add("new", old="old").model
    assert (softmax.head.weight[3:] != model.head.weight[3:]).any()
    head = Head(np.eye(2, 3, dtype=np.float32), np.zeros(2, np.float32), ("a", "b"))
    (alone,) = Model(head, activation="sigmoid").predict(np.ones(3))
    assert [each.probability for each in alone.guesses] == pytest.approx([expit(1.0)] * 2)
    assert Model(head).add([np.ones(3), ["c"]]).model.head.num_classes == 3  # a row and its label


def test_new_classes_of_an_independent_head_alone_are_found() -> None:
    """With the loss of independent classes, 29 % of new images were right, by the scale."""
    rows, truth = load_digits(return_X_y=True)
    half, found = np.arange(len(truth)) % 2 == 0, []
    base = half & (truth < 5)
    fitted = OneVsRestClassifier(LogisticRegression()).fit(rows[base] / 16, truth[base])
    weight = np.concatenate([each.coef_ for each in fitted.estimators_])
    bias = np.concatenate([each.intercept_ for each in fitted.estimators_])
    new = np.r_[*(np.flatnonzero(half & (truth == digit))[:5] for digit in range(5, 10))]
    for scale in (1, 10):
        model = Model(Head(scale * weight, scale * bias, tuple("01234")), activation="sigmoid")
        grown = model.add((rows[new] / 16, truth[new].astype(str))).model
        found.append(grown.logits(rows[~half] / 16).argmax(axis=1))
    right, of = found[0] == truth[~half], truth[~half]
    assert (right[of < 5].mean() > 0.85, right[of > 4].mean() > 0.65) == (True, True)
    np.testing.assert_array_equal(*found)


@pytest.mark.slow
def test_a_known_class_more_changes_accuracies_by_little() -> None:
    random, points = np.random.default_rng(1), []
    for _ in range(12):
        centres, noise = 0.7 * random.normal(size=(23, 12)), random.normal(size=(23, 40, 12))
        rows, names = (centres[:, None] + noise).astype("f4"), [f"c{n:02}" for n in range(23)]
        head = Head(centres[:20].astype("f4"), (-(centres[:20] ** 2).sum(1) / 2).astype("f4"))
        model = Model(replace(head, class_names=tuple(names[:20])))
        new, tested = (rows[20:, :3].reshape(-1, 12), np.repeat(names[20:], 3)), rows[:, 30:]
        for known in (0, 1, 9, 10, 11):
            given = (rows[:known, :30].reshape(-1, 12), np.repeat(names[:known], 30))
            grown = model.add(new, old=clinit.Features(*given) if known else None).model
            right = grown.logits(tested.reshape(-1, 12)).argmax(1) == np.repeat(np.arange(23), 10)
            points.append([100 * right[:200].mean(), 100 * right[200:].mean()])
    steps = np.diff(np.reshape(points, (12, 5, 2)), axis=1)[:, [0, 2, 3]]
    # One rule up to half of the classes and another after it moved them by 10 points at a time.
    error = steps.std(axis=0) / 12**0.5
    assert (np.abs(steps.mean(axis=0)) < 6 + error).all(), steps.mean(axis=0).round(1)


def test_a_second_step_measures_and_recognises_the_rows_of_the_first(place: Path) -> None:
    first, second = drawn(("dog",), 20, 14), drawn(("elk",), 20, 4)
    model = load_model("head.npz").add(first, new_share=0.3).model  # by itself
    added = model.add((np.concatenate([second.features, first.features[7:8]]), ["elk"] * 21))
    then = model.facts.history[-1].accuracy["new"]
    answer, learnt = added.lines()[0], int((model.logits(first.features).argmax(axis=1) == 3).sum())
    assert added.old_before == then != Top1(learnt, 20)  # each without itself: as told then
    assert f"20 rows learnt before, each tested without itself, {added.old.correct} right" in answer
    assert added.old.correct >= then.correct - 1
    assert model.add((drawn(("dog",), 20, 5).features, ["elk"] * 20), max_old_loss=0).old == then
    known = load_model("head.npz").remember("old", hold_out=0)
    assert known.add(second).change.data["bounded"] == 1
    assert added.change.data["bounded"] == pytest.approx(0.1)  # half of 20 of 100 images
    again = model.add(second, old=clinit.Features(first.features, ["dog"] * 20))
    assert again.old.total == again.change.data["old_left_out"] == 20  # learnt: never held out
    assert "The other 3 classes of head.npz: no row of them is held out" in answer
    assert ["a known row of dog", "row 20"] in [each["images"] for each in added.audit.repeated]
    assert "(7 are repeats or nearly alike, listed below)" in answer
    assert "a known row of dog" in str(added).split("repeated", 1)[1]
    assert "fitted on 41 tested images; the error" in added.model.facts.probabilities
    assert "no image of old classes is tested (" in model.facts.probabilities
    assert "`clinit add` does it" in model.rename({"dog": "wolf"}).facts.probabilities
    assert similar_names(("sunflower", "sunflowr"), model).startswith("sunflowr: is it sunf")
    assert "MODEL moose=mooses" in similar_names(("mooses",), added.model.rename({"elk": "moose"}))


@pytest.mark.parametrize("images", [1, 3])
def test_the_unit_of_features_is_immaterial(place: Path, images: int) -> None:
    model, new = load_model("head.npz"), drawn(NEW, images, 2)
    small = replace(new, features=new.features / 1000)
    found = Model(replace(model.head, weight=1000 * model.head.weight)).add(small).model.head
    np.testing.assert_allclose(found.weight / 1000, model.add(new).model.head.weight, rtol=0.01)


@pytest.mark.parametrize("known", [False, True])
def test_the_scale_of_a_head_and_what_its_rows_share_are_immaterial(
    place: Path, known: bool
) -> None:
    model, new = load_model("head.npz"), drawn(NEW, 3, 2)
    weight, bias = 0.02 * model.head.weight + np.arange(DIM), 0.02 * model.head.bias - 5
    head = replace(model.head, weight=weight, bias=bias)
    both = [each.remember("old") if known else each for each in (model, Model(head))]
    expected, found = (each.add(new).model.head for each in both)
    np.testing.assert_allclose(50 * (found.weight - np.arange(DIM)), expected.weight, atol=0.01)
    np.testing.assert_allclose(50 * (found.bias + 5), expected.bias, atol=0.01)


@pytest.mark.parametrize(("bias", "masked"), [(NEVER, "a"), (-65504.0, "a"), (-65504.0, "abcde")])
def test_masked_classes_change_nothing_else(place: Path, bias: float, masked: str) -> None:
    head, new = load_model("head.npz").head, drawn(NEW, 3, 2)
    weight = np.pad(head.weight, ((0, len(masked)), (0, 0)))
    last = np.append(head.bias, np.full(len(masked), bias, np.float32))
    both = (Model(each).add(new).model for each in (head, Head(weight, last, (*OLD, *masked))))
    assert np.corrcoef([each.head.weight[-2:].ravel() for each in both])[0, 1] > 0.999


@pytest.mark.untyped  # a bias of the wrong length
def test_arrays_are_read_or_refused_at_the_door(place: Path) -> None:
    model, rows = load_model("head.npz"), drawn(NEW, 1, 2).features
    assert model.add([rows, np.array([40, 7])]).model.class_names == (*OLD, "7", "40")
    assert model.remove([]) is model
    model.add((rows.astype(float), NEW)).model.save("wide")
    assert load_model("wide").class_names == (*OLD, *NEW)
    wrong: list[Any] = [(rows + 1j, NEW, "complex"), (rows[None], NEW, "(1, 2, 6)")]
    wrong += [(1e16 * rows, NEW, "1e+15"), (rows, ["a", "b\n"], "printable")]
    wrong += [(rows, np.array([b"a", b"b"]), "or text"), (rows, np.array([-1, 3]), "-1 to 3")]
    wrong += [(rows[:0], [], "no row"), (rows, ["a", np.nan], "(row 1)")]
    wrong += [(rows, np.array([None, "b"]), "(row 0)")]
    for features, labels, fact in wrong:
        with pytest.raises(ClinitError, match=re.escape(fact)) as refusal:
            model.add((features, labels))
        assert "--classes" not in refusal.value.remedy
    with pytest.raises(ValueError, match="expected"):
        Head(rows, rows[0])
    with pytest.raises(ValueError, match="Did you mean max_old_loss"):
        model.add((rows, NEW), max_oldloss=2)
    with pytest.raises(HeadError, match="not finite"):
        Model(Head(np.full((2, DIM), np.nan, np.float32), np.zeros(2, np.float32), ("a", "b")))
    with pytest.raises(HeadError, match="of the same name"):
        Model(model.head, ["ant", "bee", "bee"])
    with pytest.raises(TypeError, match="no 'activaton'"):
        Model(model.head, activaton="sigmoid")
    with pytest.raises(TypeError, match="expected clinit"):
        Model()
    with pytest.raises(TypeError, match="rename takes"):
        model.rename(wrong[0])
    for missing in (None, np.nan):
        with pytest.raises(ValueError, match="none missing"):
            clinit.Features(rows, ["dog", missing])
    assert model.add((np.ma.masked_invalid(rows), NEW)).model.class_names == (*OLD, *NEW)
    with pytest.raises(ClinitError, match="no label in 1 row"):
        model.add((rows, np.ma.masked_equal(np.array(NEW), NEW[0])))
    three = np.ma.masked_equal(np.append(rows, np.full((1, DIM), 7), axis=0), 7)
    lost = model.add((three, [*NEW, "fox"]))
    assert "not added, without a finite row: 1 class (fox)" in lost.notes()
    old = drawn(OLD, 1, 1).features
    told = "\n".join(model.add((rows, NEW), old=(old, ["ant", "Bee", "dog"])).notes())
    assert re.search(r"1 of 3 classes unknown .* \(Bee\)\n.* has Bee, the model has bee", told)
    with pytest.raises(ClinitError, match="exceed float32"):
        model.add((rows, NEW), old=(1e20 * old, OLD))


def test_held_out_rows_keep_their_groups() -> None:
    given = replace(drawn(NEW, 15, 2), groups=np.arange(30) // 3)
    for part, number in zip(held_out(given, given.nothing(), 0.2), (8, 2), strict=True):
        assert part.groups is not None
        assert len(np.unique(part.groups)) == number


def test_rows_that_a_model_learnt_stay_so_and_test_nothing(place: Path) -> None:
    first, fresh = drawn(NEW, 20, 2), drawn(NEW, 5, 7)
    model, both = load_model("head.npz").add(first).model, FeatureSet.joined([first, fresh], NEW)
    rounded = replace(both, features=both.features.astype(np.float16))
    told = model.evaluate(rounded, against=model.rename({"dog": "wolf"}))
    assert told.content["learnt"] == 40
    assert told.content["against"]["both"] == told.top1().correct
    one = load_model("head.npz").add((first.features[:1], ["eel"])).model
    assert one.evaluate((first.features[:1], ["eel"])).content["learnt"] == 1
    found = model.remember(both)
    assert (found.memory.counts.tolist(), found.memory.exact) == ([0, 0, 0, 20, 20], True)
    held_out = found.memory.held_out.features
    np.testing.assert_array_equal(np.sort(held_out, axis=0), np.sort(fresh.features, axis=0))
    assert found.facts.history[-1].data["notes"] == [
        "40 of 50 rows known already: learnt or held out as before; they add no test"
    ]
    assert found.add(drawn(NEW, 5, 8), more=True).change.images == {"dog": 25, "elk": 25}


def test_rows_are_one_if_they_are_equal_as_stored(place: Path) -> None:
    """As float16, rows above 65,504 are all alike, and many near 50."""
    model, rows = load_model("head.npz"), drawn(NEW, 20, 2)
    half, named = rows.features.astype(np.float16), replace(rows, class_names=("wolf", "moose"))
    found = model.add(rows).model.merge(model.add(replace(named, features=half)).model)
    assert found.model.class_names == OLD + NEW
    stored, near = (replace(rows, features=each) for each in (half, rows.features + 1e-6))
    for one, known, is_fresh in ((rows, stored, False), (stored, rows, False), (near, rows, True)):
        assert one.fresh(known) == [is_fresh] * 40
    for shift, step in ((50, 1e-3), (1e5, 1)):
        one, two = (rows.features + np.float32(k) for k in (shift, shift + step))
        added = model.add(replace(rows, features=one)).model
        more = added.add(replace(rows, features=two), more=True)
        assert more.change.images == {"dog": 40, "elk": 40}
        both = added.merge(model.add(replace(named, features=two)).model).model
        assert both.class_names == OLD + NEW + named.class_names


def test_single_rows_beside_unknown_old_ones_take_at_most_half_of_what_stands_in_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random, started = np.random.default_rng(0), growth._started
    weight = random.normal(size=(10, 40)).astype(np.float32)
    model = Model(Head(weight, np.zeros(10, np.float32), tuple("abcdefghij")))
    rows = clinit.Features(5 + random.normal(size=(5, 40)), range(5), class_names=[*"vwxyz"])

    eager: Any = lambda head, start: (head, start.shifted(100.0))  # noqa: E731
    monkeypatch.setattr(growth, "_started", lambda *given: eager(*started(*given)))
    added, none = model.add(rows), rows.train.nothing()
    stand_ins = old_rows(model.head, None, rows.train, none, None).rows.features
    assert 0.4 < (added.model.logits(stand_ins).argmax(axis=1) >= 10).mean() < 0.52
    assert "what they lose is not known" in "\n".join(map(str, added.lines()))


def test_guesses_made_with_the_left_out_images_neither_test_nor_choose_rows() -> None:
    """Rows chosen by them recognised 37 % of other images instead of 56."""
    random = np.random.default_rng(0)
    base, means = np.split(random.normal(size=(15, 200)).astype(np.float32), [10])
    model = Model(Head(base / 2, -np.square(base).sum(axis=1) / 4, tuple("abcdefghij")))
    labels, first = np.repeat([*"vwxyz"], 102), np.arange(510) % 102 < 2
    rows = np.repeat(means, 102, axis=0) + 3 * random.normal(size=(510, 200))
    masks = (first, ~first, np.roll(first, 2), ~np.roll(first, 2))
    draws = [(rows[mask], labels[mask]) for mask in masks]
    for init in ("auto", "least-square"):
        own = found = Top1(0, 0)
        for two, others in (draws[:2], draws[2:]):
            added = model.add(two, init=init)
            own, found = own + added.new, found + added.model.evaluate(others).top1()
        assert found.correct > 0.5 * found.total
        assert own.correct / own.total < found.correct / found.total + 0.2
        assert "too easy a test of few" not in added.lines()[0]
    assert "too easy a test of few" in model.add(two, init="discriminant").lines()[0]


def test_classes_that_go_take_their_part_of_the_covariance_along(place: Path) -> None:
    before = load_model("head.npz").remember("old")
    after = before.add("new").model.remove(NEW)
    assert before.memory is not None
    assert after.memory is not None
    np.testing.assert_allclose(after.memory.covariance, before.memory.covariance, rtol=1e-4)
    assert after.memory.freedom == pytest.approx(before.memory.freedom)
