"""Commands run in this process, for tests."""

from click.testing import CliRunner

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
