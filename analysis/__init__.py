"""From records to results: metrics, tables, figures, pages, the paper side by side.

From a record to a table: `headtrain.record.format` reads it, `report.report` groups the records of
the same data, `report.run` computes what one run has (by `metrics`), `report.measures` lists the
columns, `report.seeds` the means over seeds, `report.tables` the tables, and `report.table` prints
one in the terminal, as Markdown or CSV.
"""
