"""A classifier in use: classes are added, replaced, renamed and removed."""
