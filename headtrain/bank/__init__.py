"""A bank of linear heads that are trained and evaluated side by side."""
