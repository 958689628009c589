"""What commands share: options and their files, the console, progress, signals, errors."""
