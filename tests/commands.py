"""Commands run in this process, and the models they write, for tests."""

import numpy as np
from click.testing import CliRunner
from safetensors.numpy import load_file

from simstream.cli import main


def run(*arguments, stdin=None, env=None):
    texts = [str(argument) for argument in arguments]
    return CliRunner().invoke(main, texts, input=stdin, env=env)


def succeed(*arguments, stdin=None):
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return result


def fail(code, *arguments, stdin=None):
    """Run a command that must end with this code and one line of explanation; return the line."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == code, (result.exit_code, result.stderr)
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    return result.stderr.strip().splitlines()[-1]


def same_state(first, second, rtol=0.0):
    """Whether two model files hold the same numbers: bit for bit, or up to a share of the largest."""
    a, b = load_file(first), load_file(second)
    return a.keys() == b.keys() and all(
        np.abs(a[name] - b[name]).max(initial=0.0) <= rtol * np.abs(b[name]).max(initial=0.0)
        if rtol
        else a[name].tobytes() == b[name].tobytes()
        for name in a
    )
