"""Closed forms over the stream: each row is seen once, and only statistics are kept.

interface      the interface of a method; sums that grow with the classes; solved heads
methods        SLDA, SimpleCIL and RanPAC
"""
