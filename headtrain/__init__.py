"""Features to heads: statistics, solves, initialisations and class-incremental training."""
