"""The full-image path: the last blocks of the backbone learn together with the head."""
