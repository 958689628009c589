"""Files: written by one commit, by one writer at a time, and read with their types."""
