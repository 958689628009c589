"""Files that hold many images: tar shards of WebDataset, Parquet files of Hugging Face data sets.

They are read where they lie. A manifest says of each of its rows in which container it is, and
where in it.
"""
