"""``python -m simstream.cli``: the same as the command ``simstream``."""

from . import main

if __name__ == "__main__":
    main(prog_name="simstream")
