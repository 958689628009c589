"""The trials of `benchmarks/faults.py` and of `tests/faults`."""
