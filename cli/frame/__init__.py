"""Shared parts of commands: options and their files, the console, progress, signals, errors."""
