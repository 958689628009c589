"""Reports as one HTML page that loads nothing.

data, curves  what the page shows, as plain values
page          values to HTML, by the files of template and uplot
evaluation    the page of `clinit evaluate`
"""
