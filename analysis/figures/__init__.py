"""The figures of a report: one file each, for a paper and for the terminal.

A figure is a pure function that returns plain values, `figure`, which draws them with matplotlib,
and `draw`, which draws them in characters. `gallery` knows them by name.
"""
