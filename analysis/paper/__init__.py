"""The paper's tables next to our runs: numbers, effects, and differences.

numbers, tables, settings  what the paper prints, how it was made
commands                   the runs that make a table
reproduction               both in one table; text and files write it
"""
