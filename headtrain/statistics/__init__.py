"""Moments of features by class, and the least-square heads that follow from them.

class_statistics  counts, sums and second moment in one pass; moments is its inner loop
summed            the same with class names, in a file that stands for the rows
solve             W_LS, Eq. 3 of the paper
leave_one_out     answers to a row, solved without it
lambda_curve      the ridge, chosen by rows held out
classifier        an estimator for scikit-learn
"""
