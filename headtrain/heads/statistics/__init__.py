"""Moments of features by class, and the least-square heads that follow from them.

class_statistics  counts, sums and second moment in one pass; moments is its inner loop
summed            class statistics with class names, in a file that replaces the rows
solve             W_LS, Eq. 3 of the paper
leave_one_out     scores of a row from a head that is solved without it
lambda_curve      the ridge, chosen by held-out rows
classifier        an estimator for scikit-learn
"""
