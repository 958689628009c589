"""Read and write files: atomic commits, one writer at a time, typed documents."""
