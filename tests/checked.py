"""The checker of types for `make test-all`: an integer is a number."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
