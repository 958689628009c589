"""Metrics computed from the tables of a record: definitions and sources."""
