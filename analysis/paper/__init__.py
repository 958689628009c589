"""The paper's tables next to our runs: numbers, effects, and differences.

numbers, tables, settings  the numbers, tables and settings of the paper
commands                   the runs that make a table
reproduction               a table with both; `output` prints and writes it
"""
