"""Arrays in files that others have written: one format per file."""
