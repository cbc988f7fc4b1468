"""``python -m simstream``: the same as the command ``simstream``."""

from .cli import main

if __name__ == "__main__":
    main(prog_name="simstream")
