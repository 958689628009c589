"""What is written down about a run, and read again."""
