"""Functions for Python code; `import clinit` offers them all and loads each at its first use.

caches      fill a cache, load it
studies     what may be asked of a run
training    train heads, or top blocks under them
heads       store heads, read them, measure them
models      add classes to a model in use
"""
