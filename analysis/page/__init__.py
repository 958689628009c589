"""Reports as one HTML page that loads nothing.

data, curves  the content of the page, as plain values
page          HTML from these values, by the files of template and uplot
evaluation    the page of `clinit evaluate`
"""
