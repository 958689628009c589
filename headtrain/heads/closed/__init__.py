"""Closed forms over the stream: each row is seen once, and only statistics are kept.

interface      the interface of a method, and its evaluation
moments        counts, sums and Gram matrix that grow with the classes; random features
discriminants  SLDA and SimpleCIL
ranpac         ridge regression on random features
"""
