"""From records to results: metrics, tables, figures, pages, comparisons with the paper.

From a record to a table: `headtrain.protocol.record.format` reads the record, `report.report`
groups records of the same data, `report.run` computes the metrics of a run, `report.measures` lists
the columns, `report.settings` averages over seeds, `report.tables` builds the tables, and
`report.table` prints a table in the terminal or as Markdown.
"""
