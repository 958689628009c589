"""Records of runs, written and read."""
