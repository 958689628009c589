"""Closed forms over the stream: each row is seen once, and only statistics are kept.

interface      what a method offers, and how it is evaluated
moments        counts, sums and Gram matrix that grow with the classes; random features
methods        the method of a study, what it takes, and SimpleCIL
discriminants  SLDA and KLDA
fecam, ranpac  one method each
"""
