"""Closed forms over the stream: each row is seen once, and only statistics are kept.

interface      the interface of a method, and its evaluation
moments        counts, sums and Gram matrix that grow with the classes; random features
methods        the method of a study, the memory it needs, and SimpleCIL
discriminants  SLDA and KLDA
fecam, ranpac  one method each
"""
