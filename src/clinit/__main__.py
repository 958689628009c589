"""Run `python -m clinit`."""

from clinit.cli.main import main

if __name__ == "__main__":
    main()
