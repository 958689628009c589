"""Shrunken discriminants: rows, what is left out, the refinement, the price."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logsumexp

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.discriminant import direction_apart
from clinit.headtrain.heads.start.discriminant_choice import Problem, discriminant_rows
from clinit.headtrain.heads.start.judges import ALL, left_out_logits
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.start.refinement import STRENGTHS
from clinit.headtrain.heads.start.scale import Balance

OLD, DIM = 6, 5


def made(images: list[int], seed: int = 0, old_images: int = 12, spread: float = 1.0) -> NewClasses:
    """Return Gaussian classes: six old classes, whose head is their discriminants, and new ones."""
    random, counts = np.random.default_rng(seed), [old_images] * OLD + images
    labels = np.repeat(np.arange(len(counts)), counts)
    means = 2 * random.standard_normal((len(counts), DIM))
    features = means[labels] + spread * random.standard_normal((len(labels), DIM))
    weight, bias = means.copy(), -(means**2).sum(1) / 2
    weight[OLD:], bias[OLD:] = 0, 0
    return NewClasses(features, labels, Rows(weight, bias), OLD, len(counts))


def naive_moments(data: NewClasses, kept: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return means of new classes, mean of all means, S, by the definition."""
    shares = np.ones(len(data.labels)) if data.shares is None else data.shares
    means, scatter, freedom = [], np.zeros((DIM, DIM)), 0.0
    for each in range(data.stop):
        rows = kept & (data.labels == each)
        mean = np.average(data.features[rows], axis=0, weights=shares[rows])
        deviations = data.features[rows] - mean
        scatter += (shares[rows, None] * deviations).T @ deviations
        freedom += shares[rows].sum() - 1
        means.append(mean)
    return np.array(means[OLD:]), np.mean(means, axis=0), scatter / freedom


@pytest.mark.parametrize("old_images", [1, 2, 12])
@pytest.mark.parametrize("left", [ALL, 0, 3])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("shrinkage", [0.03, 0.3, 1.0])
def test_rows_without_a_fold_are_the_formula_of_what_remains(
    old_images: int, left: int, grouped: bool, shrinkage: float
) -> None:
    """With one image per old class, a fold has more than half of the scatter."""
    data = made([4, 5, 6], old_images=old_images)
    data.features[-1] += 9.0 * (old_images == 1)
    if grouped:
        groups = np.arange(len(data.labels))
        groups[-2:] = groups[-3]  # three rows of the last class are one image
        data = replace(data, groups=groups)
    problem = Problem.of(data)
    kept, gone = np.ones(len(data.labels), dtype=bool), problem.new.fold == left
    kept[problem.numbers[len(problem.old.labels) :][gone]] = False
    means, centre, within = naive_moments(data, kept)
    whole = problem.whole(shrinkage)
    np.testing.assert_allclose(problem.moments(left).means, means, rtol=1e-10, atol=1e-12)
    system = (1 - shrinkage) * within + shrinkage * np.trace(within) / DIM * np.eye(DIM)
    for quadratic in (0.0, 1.0):
        rows = whole.rows(problem.moments(left), quadratic)
        np.testing.assert_allclose(rows.weight @ system, means - centre, 1e-7, 1e-7)
        wanted = -rows.weight @ centre - quadratic / 2 * ((means - centre) * rows.weight).sum(1)
        np.testing.assert_allclose(rows.bias, wanted, rtol=1e-7)
    if left == ALL:
        assert whole.own_part() == pytest.approx(np.trace(np.linalg.solve(system, within)))


def test_the_priors_are_centred_where_counts_put_them() -> None:
    freedom = OLD * 11 + 2 + 4
    shrinkage, quadratic, apart = Problem.of(made([3, 5])).usual
    assert shrinkage / (1 - shrinkage) == pytest.approx(1 + 5 * DIM / freedom)
    assert (quadratic, apart) == pytest.approx((4 / 6, 1 / 2))


def test_without_variance_within_classes_the_rows_are_class_means() -> None:
    for images, old_images, spread in (([1, 1], 1, 1.0), ([5, 5], 2, 0.0)):
        problem = Problem.of(made(images, old_images=old_images, spread=spread))
        for moments in problem.remaining.values():
            found = problem.whole(0.5).rows(moments, 0.0)
            np.testing.assert_allclose(found.weight, moments.means - moments.centre, rtol=1e-9)


@pytest.mark.parametrize(("images", "spread", "rows"), [(7, 0.0, slice(None)), (1, 1.0, slice(1))])
def test_rounding_errors_of_huge_features_are_no_variance(
    images: int, spread: float, rows: slice
) -> None:
    data = made([7, 7], old_images=images, spread=spread)
    data.features[rows] *= 1e9
    assert np.isfinite(discriminant_rows(data, 1.0).rows.weight).all()


def test_a_fold_of_nearly_all_scatter_leaves_the_identity() -> None:
    data = made([2, 2], old_images=1)
    data.features[-1] *= 1e8
    problem = Problem.of(data)
    left = problem.moments(int(problem.new.fold[-1]))
    np.testing.assert_array_equal(problem.whole(0.3).weight(left), left.means - left.centre)


def loss_of(data: NewClasses, rows: Rows, *, independent: bool = False) -> float:
    """Return the mean loss of old rows plus the class-balanced loss of new rows.

    The classes of an independent head have a logistic loss each; old ones do not change.
    """
    head = np.concatenate([data.head.weight[:OLD], rows.weight])
    logits = data.features @ head.T + np.concatenate([data.head.bias[:OLD], rows.bias])
    losses = logsumexp(logits, axis=1) - logits[np.arange(len(logits)), data.labels]
    if independent:
        is_label = np.arange(data.stop) == data.labels[:, None]
        losses = np.where(is_label, np.log1p(np.exp(-logits)), np.log1p(np.exp(logits)))
        losses = losses[:, OLD:].sum(1)
    means = np.array([losses[data.labels == each].mean() for each in range(data.stop)])
    return float(means[:OLD].mean() + means[OLD:].mean())


@pytest.mark.parametrize("independent", [False, True])
def test_refined_rows_have_the_least_penalised_loss(independent: bool) -> None:
    data = made([4, 6], seed=2)
    problem = Problem.of(data, independent=independent)
    choice = problem.chosen()
    refined, system = problem.refinement(choice).rows(1.0)[ALL], problem.whole(choice.shrinkage)
    raw, scale = system.rows(system.moments, choice.quadratic), choice.scale
    apart = problem.apart[ALL]
    bias = scale * (raw.bias + choice.apart * apart.bias) + choice.shift
    start = Rows(scale * (raw.weight + choice.apart * apart.weight), bias)
    centre, strength = system.moments.centre, DIM / 64 / 10

    def penalised(rows: Rows) -> float:
        moved = (rows.weight - start.weight) @ system.factor
        at_centre = rows.bias - start.bias + (rows.weight - start.weight) @ centre
        size = float((moved**2).sum() + (at_centre**2).sum())
        return loss_of(data, rows, independent=independent) + strength / 2 * size

    least, random = penalised(refined), np.random.default_rng(0)
    assert least < penalised(start)
    for _ in range(20):
        step = 1e-2 * random.standard_normal((2, DIM + 1))
        near = Rows(refined.weight + step[:, :-1], refined.bias + step[:, -1])
        assert penalised(near) > least - 1e-5


def separating(data: NewClasses) -> Rows:
    """Return v and its bias by the definition; classes have equal weight on each side."""
    weight, total, means = 1 / np.bincount(data.labels)[data.labels], np.zeros((DIM, DIM)), []
    for side in (data.labels < OLD, data.labels >= OLD):
        rows, each = data.features[side], weight[side]
        means.append(np.average(rows, axis=0, weights=each))
        total += np.cov(rows.T, aweights=each, ddof=0) / 2
    system = 0.7 * total + 0.3 * np.trace(total) / DIM * np.eye(DIM)
    v = np.linalg.solve(system, means[1] - means[0])
    return Rows(v[None], np.array([-v @ (means[0] + means[1]) / 2]))


@pytest.mark.parametrize("rows", [0, 3, 12])
def test_v_of_few_rows_and_of_many_is_the_formula(rows: int) -> None:
    root, gap = np.random.default_rng(0).normal(size=(rows, DIM)), np.arange(1.0, 6.0)[None]
    system = 0.7 * root.T @ root + 0.3 * np.square(root).sum() / DIM * np.eye(DIM)
    system = system if rows else np.eye(DIM)
    np.testing.assert_allclose(direction_apart(root, gap) @ system, gap, rtol=1e-9)


@pytest.mark.parametrize(("independent", "seed"), [(False, 2), (True, 2), (False, 11)])
def test_what_is_chosen_is_the_least_of_loss_and_prior(independent: bool, seed: int) -> None:
    data = made([4, 6], seed=seed)
    problem, v = Problem.of(data, independent=independent), separating(data)
    np.testing.assert_allclose(problem.apart[ALL].weight, v.weight, rtol=1e-9)
    np.testing.assert_allclose(problem.apart[ALL].bias, v.bias, rtol=1e-9)
    problem.apart.update(dict.fromkeys(range(5), v))  # as if no fold were left out
    raw = problem.whole(0.5).rows(problem.moments(ALL), 0.5)
    old, new = (side.features @ raw.weight.T + raw.bias for side in (problem.old, problem.new))
    usual = 0.5 * np.log(problem.old.spread / old.var(0).mean())
    size = np.sqrt(old.var(0).mean() / (problem.old.features @ v.weight[0]).var())

    def objective(point: np.ndarray) -> float:
        scale, shift, multiple = np.exp(point[0]), point[1], point[2] * size
        weight, bias = (a + multiple * b for a, b in ((raw.weight, v.weight), (raw.bias, v.bias)))
        loss = loss_of(data, Rows(scale * weight, scale * bias + shift), independent=independent)
        return float(10 * loss + ((point[0] - usual) ** 2 + (point[2] - 0.5) ** 2) * 2)

    value, scale, shift, apart = problem._calibrated(old, new)
    found = np.array([np.log(scale), shift, apart / size])
    assert apart > 0 if seed == 2 else apart == 0  # never negative
    assert value == pytest.approx(objective(found), rel=1e-9)
    for step in 1e-2 * np.concatenate([np.eye(3), -np.eye(3)]):
        assert found[2] + step[2] < 0 or objective(found + step) > value


def test_single_images_do_not_choose_the_shrinkage() -> None:
    """The value in comparisons has the loss of old images and the priors alone."""
    problem = Problem.of(made([1, 1, 1, 1], seed=3))
    best, old = problem._best(0.5, 0.0), problem.old
    rows = problem.whole(0.5).rows(problem.moments(ALL), best.quadratic)
    raw, v = old.features @ rows.weight.T + rows.bias, left_out_logits(problem.apart, old, old.fold)
    logits = best.scale * (raw + best.apart * v) + best.shift
    usual, spread = 0.5 * np.log(old.spread / raw.var(0).mean()), raw.var(0).mean()
    distances = np.log(best.scale) - usual, best.apart * np.sqrt(v.var() / spread) - 3 / 4
    value = 4 * problem.loss(logits, old, None)[0] + np.square(distances).sum() / (2 * 0.5**2)
    value += (best.quadratic - 1 / 3) ** 2 / (2 * 0.35**2)
    assert best.value == pytest.approx(value)


BALANCE = Balance(
    room=np.array([-1.0, 0.5, 1.0, 2.0, 4.0]), judged=10, needed=np.array([0.7, 1.5]), untested=0.0
)


@pytest.mark.parametrize(("points", "shift"), [(0, -1), (20, 0.7), (100, 1.5)])
@pytest.mark.parametrize("single", [0.0, 0.04, 1.0])
def test_the_price_is_paid_for_new_images(points: int, shift: float, single: float) -> None:
    balance, most = BALANCE._replace(untested=single), BALANCE.room[min(points // 10, 4)]
    assert balance.shift(points) == pytest.approx(shift + single * (most - shift), abs=1e-3)
    assert balance.moved(balance.shift(points)).lost <= points / 100 * balance.judged


def test_a_shift_of_least_loss_is_kept_where_the_price_allows_it() -> None:
    shifts = [BALANCE._replace(fitted=each).shift(20) for each in (0.0, 0.9, 3.0)]
    assert shifts == pytest.approx([0.7, 0.9, 1.0], abs=1e-3)


def test_images_that_no_shift_can_change_decide_nothing() -> None:
    logits = np.array([[1.0, 3.0], [2.0, 1.0], [0.0, 2.0], [4.0, 1.0]])
    right, target = np.array([True, False, False, False]), np.array([-1, -1, 1, 1])
    found = Balance.of(np.full(4, 5.0), right, target, logits)
    assert (found.room.tolist(), found.needed.tolist()) == ([2.0], [3.0])
    assert (found.judged, found.untested) == (2, 0.5)


def test_old_classes_lose_no_more_than_the_price_on_images_that_were_left_out() -> None:
    data = made([3, 8], seed=4, spread=2.5)
    for points in (0.0, 5.0, 20.0):
        found = discriminant_rows(data, points)
        assert found.balance.lost <= points / 100 * found.balance.judged
        assert found.left_out is not None
        left = found.left_out()
        assert {*left.labels} == {*range(data.stop)}
        assert len(left.drawn) == len(left.logits)


def test_a_higher_price_raises_the_biases_as_it_raises_the_left_out_logits() -> None:
    low, high = (discriminant_rows(made([5, 6], spread=3.0), points) for points in (0.0, 20.0))
    raised = high.shift - low.shift
    assert raised > 0.1
    np.testing.assert_allclose(high.rows.bias - low.rows.bias, raised)
    assert low.left_out is not None
    assert high.left_out is not None
    np.testing.assert_allclose(high.left_out().logits - low.left_out().logits, raised)


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("images", [1, 2, 3])
@pytest.mark.parametrize("old_images", [0, 1, 4])
def test_every_count_from_one_up_gives_finite_rows(
    classes: int, images: int, old_images: int
) -> None:
    found = discriminant_rows(made([images] * classes, old_images=old_images), 1.0)
    assert found.rows.weight.shape == (classes, DIM)
    assert np.isfinite(np.c_[found.rows.weight, found.rows.bias]).all()


def test_images_left_out_choose_how_much_the_prior_weighs() -> None:
    chosen = []
    for seed, images in ((3, [60, 40, 1]), (1, [60, 40]), (3, [1, 1])):
        data = made(images, seed=seed, spread=8.0)
        problem, totals = Problem.of(data), []
        refinement, fold = problem.refinement(problem.chosen()), np.full(len(data.labels), -1)
        fold[problem.numbers] = np.append(problem.old.fold, problem.new.fold)
        judges = data.subset(fold >= 0)
        for strength in STRENGTHS:
            rows, losses = refinement.rows(strength), np.zeros(len(judges.labels))
            for i, left in enumerate(fold[fold >= 0].tolist()):
                weight = np.concatenate([data.head.weight[:OLD], rows[left].weight])
                bias = np.concatenate([data.head.bias[:OLD], rows[left].bias])
                logits = weight @ judges.features[i] + bias
                losses[i] = logsumexp(logits) - logits[judges.labels[i]]
            means = [losses[judges.labels == each].mean() for each in np.unique(judges.labels)]
            judged = sum(each for each in images if each > 1)
            new = np.mean(means[OLD:]) if judged else 0.0
            totals.append(judged * (np.mean(means[:OLD]) + new) + np.log(strength) ** 2)
        chosen.append(STRENGTHS[int(np.argmin(totals))])
        wanted = refinement.rows(chosen[-1])[ALL].weight
        np.testing.assert_array_equal(refinement.best()[ALL].weight, wanted)
    assert chosen == [0.3, 30.0, 1.0]


def test_every_row_is_judged_by_rows_of_the_folds_without_it() -> None:
    problem = Problem.of(made([1, 6], seed=3))
    assert sorted(problem.new.fold.tolist()) == [-1, 0, 0, 1, 2, 3, 4]
    refined = problem.refinement(problem.chosen()).rows(1.0)
    for side in (problem.old, problem.new):
        found = left_out_logits(refined, side, side.fold)
        for features, fold, logits in zip(side.features, side.fold.tolist(), found, strict=True):
            rows = refined[fold if fold >= 0 else ALL]
            np.testing.assert_allclose(logits, rows.weight @ features + rows.bias, rtol=1e-9)


@pytest.mark.parametrize("apart", [0.1, 1.0, 10.0])
def test_the_only_image_of_a_class_owes_what_the_formula_says(apart: float) -> None:
    data = made([1, 1, 3], seed=6)
    data.features[data.labels >= OLD] *= apart
    _means, centre, within = naive_moments(data, np.ones(len(data.labels), dtype=bool))
    system, spreads = np.linalg.inv(0.7 * within + 0.3 * np.trace(within) / DIM * np.eye(DIM)), []
    for sides in (range(OLD), range(OLD, OLD + 3)):
        images = [data.features[data.labels == each] - centre for each in sides]
        middle = np.mean([rows.mean(0) for rows in images], axis=0)
        squares = [[(row - middle) @ system @ (row - middle) for row in rows] for rows in images]
        spreads.append(np.mean([np.mean(each) for each in squares]))
    seen = np.trace(system @ within)
    unseen = seen / (1 - 0.7 * seen / (OLD * 11 + 2))
    share = unseen / (unseen + (spreads[0] - seen) * OLD / (OLD - 1))
    wanted = max(unseen, unseen / 3 + share * spreads[1])
    assert (wanted > unseen) == (apart == 10.0)
    problem = Problem.of(data)
    assert problem._owes(problem.whole(0.3), 0.3) == pytest.approx(wanted, rel=1e-9)
    # One old class has no spread of its own.
    problem = Problem.of(data.subset((data.labels == 0) | (data.labels >= OLD)))
    seen = problem.whole(0.3).own_part()
    assert problem._owes(problem.whole(0.3), 0.3) == pytest.approx(seen / (1 - 0.7 * seen / 13))


def test_rows_of_a_fold_do_not_read_its_old_images() -> None:
    problem = Problem.of(made([2, 6], seed=5))
    choice, out = problem.chosen(), problem.old.fold == 2
    features = np.where(out[:, None], -problem.old.features, problem.old.features)
    other = replace(problem, old=replace(problem.old, features=features))
    ours, theirs = (each.refinement(choice).rows(1.0) for each in (problem, other))
    np.testing.assert_array_equal(ours[2].weight, theirs[2].weight)
    assert not np.array_equal(ours[3].weight, theirs[3].weight)


def test_v_of_a_fold_does_not_read_the_only_images_dealt_to_it() -> None:
    problem = Problem.of(made([1] * 3, seed=5))
    new = problem.new.features * np.array([[1], [1], [-1]])
    other = replace(problem, new=replace(problem.new, features=new)).apart
    same = [np.array_equal(problem.apart[each].weight, other[each].weight) for each in (2, 3)]
    assert same == [True, False]
