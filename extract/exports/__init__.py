"""Rows of a cache in files that others read: one format per file."""
