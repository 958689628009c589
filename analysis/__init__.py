"""Records to answers: metrics, tables and curves of saved runs."""
