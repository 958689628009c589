"""The paper's tables beside our runs: numbers, effects, and what differs."""
