from collections import Counter
from math import comb
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import top_k_accuracy_score

from clinit.headtrain.model.evaluation import CHANGES, Evaluation, evaluate
from clinit.headtrain.model.facts import Known, ModelFacts
from clinit.headtrain.model.model import Model
from tests.headtrain.heads.test_temperature import naive_error

NAMES = tuple("abcdefgh")


def made(seed: int, images: int = 60) -> tuple[np.ndarray, dict[str, str], Evaluation]:
    """Return logits, the class of each image (the last ones of no class), and the evaluation."""
    logits = np.random.default_rng(seed).normal(size=(images, len(NAMES))) * 3
    truths = [*(NAMES[n % 8] for n in range(images - 12)), *("stranger",) * 11, "a"]
    classes = {f"{name}/{n}.png": name for n, name in enumerate(truths)}
    halves = [range(images // 2), range(images // 2, images)]
    bad = {images - 1: "the file is empty"}
    batches = ((rows, logits[rows], bad if images - 1 in rows else {}) for rows in halves)
    asked: Any = SimpleNamespace(classes=classes, answered=lambda *_: batches, rows=(), noun="row")
    known = Known(rule="energy", images=100, levels={"energy": (4.0,) * 100})
    facts = ModelFacts(class_names=NAMES, tasks=(0,) * len(NAMES), known=known)
    return logits, classes, evaluate(Model(facts=facts, linear=None), asked)


@pytest.mark.untyped  # the questions are a stand-in
def test_measures_are_those_of_their_definitions() -> None:
    logits, classes, found = made(0)
    known, truth = np.arange(48), np.array([NAMES.index(name) for name in [*classes.values()][:48]])
    answers, content = logits.argmax(axis=1), found.content
    assert content["images"] == {"known": 48, "strangers": 11}
    for k, name in ((1, "top1"), (5, "top5")):
        expected = top_k_accuracy_score(truth, logits[known], k=k)
        assert content[name] == pytest.approx(100 * expected)
    right, expected = answers[known] == truth, naive_error(logits[known], truth)
    assert content["calibration_error"] == pytest.approx(expected)
    per_class = {each["class"]: each["top1"] for each in content["classes"]}
    assert per_class == {
        n: pytest.approx(100 * right[truth == NAMES.index(n)].mean()) for n in NAMES
    }
    wrong = Counter(
        (NAMES[t], NAMES[a]) for t, a in zip(truth, answers[known], strict=True) if t != a
    )
    pairs = [((each["class"], each["answer"]), each["images"]) for each in content["confused"]]
    assert pairs == sorted(wrong.items(), key=lambda pair: (-pair[1], pair[0]))
    assert sum(len(each["files"]) for each in content["confused"]) == wrong.total()
    energy = np.log(np.exp(logits).sum(axis=1))
    others = energy[48:59]
    wins = np.mean([np.mean((one > others) + 0.5 * (one == others)) for one in energy[known]])
    assert content["rejection"]["auroc"] == pytest.approx(wins)
    away = {"known": int((energy[known] < 4).sum()), "strangers": int((others < 4).sum())}
    assert content["rejection"]["turned_away"] == away
    assert content["unreadable"] == [{"image": "a/59.png", "error": "the file is empty"}]
    shares = [away["strangers"] / 11, away["known"] / 48]
    caught, refused = (f"({100 * share:.0f} %)" for share in shares)
    assert f"unknown caught {caught}, {away['known']} of 48 known refused {refused}" in str(found)
    assert {"Classes with mistakes", *found.lines()} <= {*str(found).splitlines()}
    assert found.summary["calibration"].endswith(" %: too high"), "sure of noise"
    synset = found.table["class"].replace("a", "n01440764").alias("class")
    assert "tench (n01440764)" in str(Evaluation(found.table.with_columns(synset), None))
    sure = Evaluation(found.table.with_columns(probability=found.table["right"].mean()), None)
    assert ": too" not in sure.summary["calibration"]


@pytest.mark.untyped  # the questions are a stand-in
def test_two_models_differ_by_what_one_alone_gets_right() -> None:
    one, other = made(1)[2], made(2)[2]
    told = one.against(other).content["against"]
    rights = [each.known["right"].to_numpy() for each in (one, other)]
    expected: dict[str, Any] = {
        "gained": rights[0] & ~rights[1],
        "lost": rights[1] & ~rights[0],
        "both": rights[0] & rights[1],
        "neither": ~(rights[0] | rights[1]),
    }
    assert {each: told[each] for each in CHANGES} == {n: int(e.sum()) for n, e in expected.items()}
    images = one.known["image"].to_numpy()
    assert [each["image"] for each in told["lost_images"]] == list(images[expected["lost"]])
    few, every = sorted((told["gained"], told["lost"]))[0], told["gained"] + told["lost"]
    assert 0 < few < every / 2, "the draw must tell the tails apart"
    tail = sum(comb(every, k) for k in range(few + 1)) / 2**every
    assert told["p_value"] == pytest.approx(min(1.0, 2 * tail))
    assert one.against(one).p_value == 1.0
