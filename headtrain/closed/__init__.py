"""Closed forms over the stream: each row is seen once, and only statistics are kept.

interface      what a method offers: learn rows as they arrive, solve, score features
feature_map    random features, mapped block by block
class_moments  counts, sums and Gram matrix that grow with the classes
ridge_path     ridge regression without a bias for many lambdas at once
slda, simplecil, fecam, klda, ranpac
               one method each
methods        the method of a study
memory         what it takes, said and checked before it starts
evaluate       correct counts and mistakes, block by block
"""
