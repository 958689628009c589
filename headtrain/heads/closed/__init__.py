"""Closed forms over the stream: each row is seen once, and only statistics are kept.

methods        what closed forms share; solved heads; SLDA and SimpleCIL
ranpac         RanPAC, and sums that grow with the classes
"""
