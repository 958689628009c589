"""From the tables of a record to numbers: what each metric is, and where it comes from."""
