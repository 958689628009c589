"""Reports as one HTML page that loads nothing.

data          the content of the page and its curves, as plain values
page          HTML from these values, by the files of template and uplot
evaluation    the page of `clinit evaluate`
"""
