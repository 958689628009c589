from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from clinit.analysis.report import ReportView
from clinit.analysis.report.compare import Difference, adjusted_by_holm
from clinit.analysis.runs import Runs, runs_of
from clinit.errors import RecordError
from clinit.headtrain.protocol.record.info import held_out_manifest
from tests.analysis.conftest import MakeRun
from tests.analysis.printed import unbroken

HEIGHT = {"random": 0.5, "class-mean": 0.5, "least-square": 0.8}


def test_without_rounding_the_interval_is_that_of_the_paired_t_test() -> None:
    random = np.random.default_rng(0)
    better = {seed: float(random.normal(2)) for seed in range(5)}
    other = {seed: float(random.normal()) for seed in (3, 1, 0, 2, 4)}
    found = Difference.of(better, other)
    ones, others = ([values[seed] for seed in range(5)] for values in (better, other))
    test: Any = ttest_rel(ones, others)
    assert found.number == 5
    assert found.p_value == pytest.approx(test.pvalue)
    ends = [found.mean - found.half_width, found.mean + found.half_width]
    np.testing.assert_allclose(ends, test.confidence_interval(0.95))


@pytest.mark.parametrize(
    ("values", "others", "step", "expected"),
    [
        # mean, number, whether there is an interval and a p-value
        ({0: 3.0, 1: 9.0}, {0: 1.0, 2: 4.0}, 0.0, (2.0, 1, False, False)),
        ({0: 1.0}, {1: 1.0}, 0.0, (None, 0, False, False)),
        ({0: 2.0, 1: 3.0}, {0: 1.0, 1: 1.0}, 0.4, (1.5, 2, True, False)),
        (dict.fromkeys(range(5), 1.0), dict.fromkeys(range(5), 0.5), 0.0, (0.5, 5, True, False)),
        (dict.fromkeys(range(5), 1.0), dict.fromkeys(range(5), 0.5), 0.5, (0.5, 5, True, True)),
    ],
)
def test_equal_or_few_differences_are_no_proof(
    values: dict[int, float], others: dict[int, float], step: float, expected: tuple[object, ...]
) -> None:
    found = Difference.of(values, others, step=step)
    known = found.half_width is not None, found.p_value is not None
    assert (found.mean, found.number, *known) == expected
    if found.p_value is not None:
        assert found.p_value > 0.001, "one image in each of five seeds"


def _naive_holm(p_values: list[float]) -> list[float]:
    """Return the least level at which the sequence of tests of Holm rejects each hypothesis."""
    order, count = np.argsort(p_values), len(p_values)
    levels = [(count - place) * p_values[index] for place, index in enumerate(order)]
    return [min(1.0, max(levels[: [*order].index(index) + 1])) for index in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_p_values_are_adjusted_by_holm(seed: int) -> None:
    p_values = [*(np.random.default_rng(seed).random(9) ** 4).tolist(), 0.01, 0.01, 0.0, 1.0]
    found = adjusted_by_holm([Difference(1.0, p_value=each) for each in (None, *p_values)])
    assert (found[0].adjusted, found[0].result) == (None, "-")
    adjusted = [each.adjusted or 0.0 for each in found[1:]]
    np.testing.assert_allclose(adjusted, _naive_holm(p_values))
    results = ["higher" if each < 0.05 else "open" for each in adjusted]
    assert [each.result for each in found[1:]] == results


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("images", [250, 1000, 7300])
def test_of_pages_without_an_effect_few_find_one_and_a_true_effect_is_found(
    seeds: int, images: int
) -> None:
    """24 tests on a page; starts that differ in some images by chance, as random starts do."""
    rng = np.random.default_rng(images + seeds)

    def page(effect: float) -> list[Difference]:
        made = []
        for _ in range(24):
            share = rng.choice([0.004, 0.02, 0.1])  # of images on which two runs disagree
            right = rng.binomial(images, share, (2, seeds)) / images
            moved = 100 * (right[0] - right[1]) + effect
            made.append(
                Difference.of(
                    dict(enumerate(np.round(moved * images / 100) * 100 / images)),
                    dict.fromkeys(range(seeds), 0.0),
                    step=100 / images,
                )
            )
        return adjusted_by_holm(made)

    false = sum(any(each.result in ("higher", "lower") for each in page(0.0)) for _ in range(300))
    assert false <= 0.07 * 300
    found = [each.result == "higher" for _ in range(40) for each in page(4.5)]
    if seeds >= (10 if images < 1000 else 5):
        assert np.mean(found) >= 0.95
    assert seeds > 2 or not any(found), "two seeds have no verdict"


def several(make_run: MakeRun, inits: tuple[str, ...] = tuple(HEIGHT), **more: Any) -> list[Any]:
    """Three seeds; class means equal random rows up to an image, which one of them has."""
    return [
        make_run(i, seed=s, accuracy=lambda t, _, h=HEIGHT[i], s=s: h + 0.05 * s, **more)
        for i in inits
        for s in range(4)
    ]


def test_runs_are_compared_seed_by_seed_with_those_that_are_otherwise_equal(
    make_run: MakeRun,
) -> None:
    runs = runs_of([*several(make_run), *several(make_run, ("least-square",), lr=0.5)])
    found = runs.compare("init", baseline="random", columns=["acc_new", "loss_new"])
    assert found.columns[:3] == ["init", "baseline", "measure"]
    assert found["seeds"].to_list() == [4] * 4
    lines = {(line["init"], line["measure"]): line for line in found.to_dicts()}
    rows = {(row["init"], row["config"]["lr"], row["seed"]): row for row in runs.rows()}
    own = [
        rows["least-square", 0.001, s]["acc_new"] - rows["random", 0.001, s]["acc_new"]
        for s in range(4)
    ]
    assert lines["least-square", "acc_new"]["difference"] == pytest.approx(np.mean(own))
    assert lines["least-square", "acc_new"]["wins"] == 4
    assert lines["least-square", "loss_new"]["wins"] == 4, "less is better"
    assert lines["least-square", "acc_new"]["result"] == "higher"
    assert lines["class-mean", "acc_new"]["result"] == "open"
    shown = unbroken(runs.comparison("init", "random").table(), 120)
    assert "Left out: least-square (lr 0.5)." in shown
    assert "adjusted by Holm for" in shown
    pair = runs_of([make_run(init, seed=s) for init in ("random", "class-mean") for s in (0, 1)])
    shown = unbroken(pair.comparison("init", "random").table(), 120)
    assert "95 % interval. Fewer than 3 seeds have no p-value." in shown


def test_heads_and_data_in_memory_are_told_apart_by_digests(make_run: MakeRun) -> None:
    records = [[*several(make_run, ("random", "least-square"))] for _ in range(3)]
    for part, head, data in zip(records, "abc", "xxy", strict=True):
        for run in part:
            run.info["head"] = {"path": None, "digest": head}
            run.info["base"] |= {"path": "", "features_digest": data}
    runs = runs_of([run for part in records for run in part])
    for found in (runs, runs.best_of("init", by=["init", "base", "head"])):
        lines = found.compare("init", "random", ["acc_new"])
        assert lines.unique(["init", "base", "head"]).height == lines.height == 3, (
            "each with its own"
        )
        assert found.means().unique(["init", "base", "head"]).height == 6
    assert runs_of(records[0])[0].texts.items() >= {"base": None, "head": "stored"}.items()


@pytest.mark.parametrize(
    ("field", "baseline", "fact"),
    [
        ("init", "zero", "init has class-mean, least-square, random"),
        ("lr", "0.5", "lr has 0.001"),
        ("inti", "zero", "Did you mean init?"),
        ("lr", "0.001", "in lr alone"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    make_run: MakeRun, field: str, baseline: str, fact: str
) -> None:
    with pytest.raises(RecordError) as caught:
        runs_of(several(make_run)).compare(field, baseline)
    assert fact in f"{caught.value} {caught.value.remedy}"


def searched(make_run: MakeRun, *, held_out: bool) -> Runs:
    """Two rates for each start, of which the worse on test images is the better held out."""
    records = []
    for init, best in (("random", 0.1), ("least-square", 0.2)):
        for lr in (0.1, 0.2):
            for is_trial in (True, False) if held_out else (False,):
                height = 0.8 if (lr == best) == is_trial else 0.6
                for seed in range(3):
                    run = make_run(init, lr=lr, seed=seed, accuracy=lambda t, i, h=height: h)
                    if is_trial:
                        for info in (run.info["base"], run.info["new"]):
                            info["val_manifest_digest"] = held_out_manifest(0.1, 0)
                    records.append(run)
    return runs_of(records)


@pytest.mark.parametrize("held_out", [True, False])
def test_settings_are_chosen_on_held_out_images_or_with_a_note(
    make_run: MakeRun, held_out: bool
) -> None:
    best = searched(make_run, held_out=held_out).best_of(["lr"], by=["init"])
    assert not any(run.is_held_out for run in best)
    rates = {run.init: run.config["lr"] for run in best}
    expected = {"random": 0.1, "least-square": 0.2}
    assert rates == (expected if held_out else {"random": 0.2, "least-square": 0.1})
    assert ("too high" in best.notes[0]) != held_out
    assert best.rows()[0]["notes"] == [best.notes[0]]
    assert {row["gain_equal_level"] for row in best.rows() if row["init"] != "random"} == {None}
    assert ("too high" in best.as_text(ReportView(format="latex"))) != held_out
    compared = best.compare("init", "random", ["acc_new"])
    assert compared["seeds"].to_list() == [3], "rates may differ, because each start has its own"


def test_chosen_settings_without_a_run_on_test_images_are_refused(make_run: MakeRun) -> None:
    trials = [run.record for run in searched(make_run, held_out=True) if run.is_held_out]
    with pytest.raises(RecordError, match="no run on test images has the settings"):
        runs_of(trials).best_of(["lr"])
    for name in ("rate", "seed"):
        with pytest.raises(RecordError, match=f"'{name}' is no setting to choose"):
            runs_of(trials).best_of(name)
