"""Features drawn from what a model remembers: rehearsal where no real row is kept.

For each class whose mean is known, pairs mu_c + e, mu_c - e with

    e = A z,    A A^T = Sigma / freedom,    z ~ N(0, I),

so that the mean of the drawn rows of a class is mu_c exactly. Where there are at least as many
pairs as features are wide, the z of all classes are whitened together: the within-class covariance
of the drawn rows is then that of the population exactly, and least squares, LDA and D_LS of the
drawn rows are those of the statistics, whatever the seed. Where variances of the classes are known,
e is scaled to that of its class, as far as the number of its images allows.

Sources: G. Zhang, L. Wang, G. Kang, L. Chen, Y. Wei, "SLCA: slow learner with classifier alignment
for continual learning on a pre-trained model", ICCV 2023 (rows from N(mu_c, Sigma_c)); the pairs
are antithetic variates (J. M. Hammersley, K. W. Morton, 1956).
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from jaxtyping import Float

from clinit.extract.features import FeatureSet
from clinit.headtrain.export.memory import Memory
from clinit.headtrain.stream.seeds import Draw, generator

TRUST = 10.0
"""Degrees of freedom at which the variances of a class count as much as the shared ones."""


def pseudo_features(memory: Memory, rows_per_class: int, seed: int) -> FeatureSet:
    """Draw rows of all classes whose means are known.

    Args:
        memory: Statistics of the classes.
        rows_per_class: Rows of each class; rounded up to an even number.
        seed: Equal seeds give equal rows.
    """
    classes = np.flatnonzero(memory.known)
    pairs = -(-rows_per_class // 2)
    rng = generator(seed, Draw.PSEUDO_ROWS)
    noise = whitened(rng.standard_normal((len(classes) * pairs, memory.dim)))
    offsets = (noise @ root(memory.population_covariance)).reshape(len(classes), pairs, -1)
    if memory.variances is not None:
        offsets *= _spreads(memory, memory.variances)[classes, None, :]
    means = memory.means[classes].astype(np.float64)[:, None, :]
    rows = np.concatenate([means + offsets, means - offsets], axis=1)
    return FeatureSet(
        rows.reshape(-1, memory.dim).astype(np.float32),
        np.repeat(classes, 2 * pairs),
        memory.class_names,
    )


def whitened(noise: Float[np.ndarray, "pairs dim"]) -> Float[np.ndarray, "pairs dim"]:
    """Return the rows with second moment I, where there are as many as they are wide."""
    pairs, dim = noise.shape
    if pairs < dim:
        return noise
    factor = scipy.linalg.cholesky(noise.T @ noise / pairs, lower=True)
    return np.asarray(scipy.linalg.solve_triangular(factor, noise.T, lower=True).T)


def root(covariance: Float[np.ndarray, "dim dim"]) -> Float[np.ndarray, "dim dim"]:
    """Return the symmetric root of a covariance; what rounding made negative counts as zero."""
    values, vectors = scipy.linalg.eigh(covariance)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)


def _spreads(
    memory: Memory, variances: Float[np.ndarray, "classes dim"]
) -> Float[np.ndarray, "classes dim"]:
    """Return the ratio of the deviation of each feature in each class to the shared one."""
    shared = np.maximum(np.diag(memory.population_covariance), 1e-30)
    freedom = (memory.counts - 1)[:, None].clip(min=0)
    unbiased = variances * (freedom + 1) / np.maximum(freedom, 1)
    mixed = (freedom * unbiased + TRUST * shared) / (freedom + TRUST)
    return np.asarray(np.sqrt(mixed / shared))
