"""Features in files that others have written, or read: in and out of caches."""
