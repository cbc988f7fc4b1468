"""Run the README and the tour: the Python blocks of each in one session, then its `simstream` commands.

Needs nothing but simstream itself, so that a freshly installed wheel can be tried with it:
``python tests/readme_tour.py``.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "tour.md")


def blocks(language, page):
    """Code of all fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def run_python(page):
    session = {}
    for code in blocks("python", page):
        exec(compile(code, str(page), "exec"), session)


def commands(page):
    """Single commands of the shell blocks that start with `simstream`; pipelines are left out."""
    lines = "".join(blocks("sh", page)).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("simstream ") and "|" not in line]


def run_as_process(*arguments):
    program = [sys.executable, "-c", "from simstream.cli import main; main()"]
    subprocess.run([*program, *arguments], check=True)


def run(command=run_as_process):
    """Run both pages, each command by calling ``command`` with the arguments."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for page in PAGES:
                run_python(page)
                for line in commands(page):
                    command(*shlex.split(line, comments=True)[1:])
        finally:
            os.chdir(here)


if __name__ == "__main__":
    run()
