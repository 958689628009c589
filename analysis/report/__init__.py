"""From numbers to tables, notes and conclusions: the report of runs."""
