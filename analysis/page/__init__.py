"""The report as one HTML page that loads nothing."""
