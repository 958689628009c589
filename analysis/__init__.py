"""From records to results: metrics, tables and curves of saved runs."""
