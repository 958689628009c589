"""Statistics of features by class, and the least-square heads solved from them."""
