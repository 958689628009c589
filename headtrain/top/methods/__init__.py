"""Methods that train the top of a backbone together with its classifier."""
