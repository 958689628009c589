"""The paper's tables next to our runs: numbers, effects, and differences."""
