"""Import features from files of other programs, and export features for them."""
