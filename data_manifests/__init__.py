"""Descriptions of known data sets, one TOML file each."""
