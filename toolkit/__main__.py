"""`python -m toolkit ...` is the console script `toolkit ...`."""

from toolkit.cli.main import main

if __name__ == "__main__":
    main()
