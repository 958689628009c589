"""Models to give away: assembled from a run, written to a file, opened again."""
