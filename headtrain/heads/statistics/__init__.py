"""Moments of features by class, and the least-square heads that follow from them.

class_statistics  counts, sums and second moment in one pass; moments is its inner loop
solve             W_LS, Eq. 3 of the paper, and the choice of its ridge
leave_one_out     scores of a row from a head that is solved without it
classifier        an estimator for scikit-learn
"""
