"""``python -m toprung``: the command line, where no ``toprung`` is on the path."""

from toprung.cli import main

if __name__ == "__main__":
    main()
