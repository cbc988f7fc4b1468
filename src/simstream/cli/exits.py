"""How a command ends: exit codes, errors in one line, and what Ctrl-C and SIGTERM do."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from importlib.metadata import EntryPoint, entry_points
from types import FrameType
from typing import Any

import click

from .output import warnings_as_lines
from .threads import choose_threads

#: Keys of ``click.Context.meta``: whether to show tracebacks, and whether learning has begun.
DEBUG = "simstream.debug"
LEARNING = "simstream.learning"


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    DATA = 1
    USAGE = 2
    MODEL = 3
    DIVERGED = 4
    BUG = 70
    INTERRUPTED = 128 + signal.SIGINT
    TERMINATED = 128 + signal.SIGTERM


_MEANING = {
    ExitCode.OK: "success",
    ExitCode.DATA: "bad data: a missing or malformed file, NaN, a wrong dimension",
    ExitCode.USAGE: "wrong usage: unknown, conflicting or illegal options, a missing extra",
    ExitCode.MODEL: "not a model file, a damaged one, or one of a newer version",
    ExitCode.DIVERGED: "learning diverged: use a smaller step or scale the items",
    ExitCode.BUG: "a bug in simstream",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C (train and adapt save what was learnt online)",
    ExitCode.TERMINATED: "stopped by SIGTERM (train and adapt save what was learnt online)",
}


#: What the second Ctrl-C costs, while a command learns.
_LOST = {
    "train": "; progress since the last checkpoint is lost",
    "adapt": "; what was learnt is lost, and nothing was written",
}


#: What Ctrl-C costs before that.
BEFORE_LEARNING = " before learning began; nothing was written"


def exit_code_help() -> str:
    """The table of exit codes, for ``--help``."""
    return "\b\nExit codes:\n" + "\n".join(
        f"  {int(code):>3}  {text}" for code, text in _MEANING.items()
    )


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code that an error of the library leads to."""
    if isinstance(error, KeyboardInterrupt):  # perhaps in the middle of an import: import nothing
        return ExitCode(128 + getattr(error, "signal", signal.SIGINT))
    from .. import DivergedError, ModelFileError
    from ..data.item_formats import LabelColumnError
    from ..extras import MissingExtraError

    match error:
        case ModelFileError():  # which is a ValueError too
            return ExitCode.MODEL
        case DivergedError():
            return ExitCode.DIVERGED
        case MissingExtraError():
            return ExitCode.USAGE
        case LabelColumnError():  # the file is good, the value of --label-column is not
            return ExitCode.USAGE
        case ValueError() | TypeError() | OSError() | MemoryError():
            return ExitCode.DATA
    return ExitCode.BUG


def _plugins() -> dict[str, EntryPoint]:
    """Commands that other installed packages provide."""
    return {entry.name: entry for entry in entry_points(group="simstream.commands")}


class ReportingGroup(click.Group):
    """A group that reports every error in one line on stderr and ends with a telling exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Own commands in the order in which they were added, then those of other packages."""
        return [*self.commands, *_plugins()]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """A command by name, own ones first."""
        if (found := super().get_command(ctx, name)) is not None:
            return found
        entry = _plugins().get(name)
        return None if entry is None else entry.load()

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; how many threads it has is decided before anything numerical is loaded."""
        choose_threads()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn what the library raises into a message and an exit code."""
        try:
            with warnings_as_lines():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click reports these itself
        except (Exception, KeyboardInterrupt) as error:
            code = exit_code_of(error)
            if ctx.meta.get(DEBUG):
                click.echo(traceback.format_exc(), err=True)
            lost = _LOST.get(ctx.invoked_subcommand or "", "")
            if lost and not ctx.meta.get(LEARNING):
                lost = BEFORE_LEARNING
            click.echo(f"simstream: {_one_line(error, code, lost)}", err=True)
            ctx.exit(code)


def _one_line(error: BaseException, code: ExitCode, lost: str) -> str:
    """The message; ``lost`` is what an interruption costs."""
    text = " ".join(str(error).split())
    match code:
        case ExitCode.INTERRUPTED | ExitCode.TERMINATED:
            return text or f"interrupted{lost}"
        case ExitCode.BUG:
            return (
                f"bug: {type(error).__name__}: {text} (please report it with the output of --debug)"
            )
        case _:
            if isinstance(error, FileNotFoundError) and error.filename and error.errno:
                return f"error: {error.filename}: no such file"
            return f"error: {text or type(error).__name__}"


# -- Ctrl-C and SIGTERM ---------------------------------------------------------------------------


def _install(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Handle both signals; return the handlers they had, for `_restore`."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            # A signal that is ignored (nohup, a background job) is ignored on purpose.
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    return before


def _restore(before: dict[int, Any]) -> None:
    while before:
        signal.signal(*before.popitem())


class Interruption:
    """While active, the first SIGINT or SIGTERM is only remembered; the second acts at once.

    Examples
    --------
    >>> import signal
    >>> with Interruption() as interruption:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     interruption.requested()
    True
    >>> interruption.signal == signal.SIGTERM
    True
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self.signal is not None

    def __enter__(self) -> Interruption:
        self._before = _install(self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        _restore(self._before)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        _restore(self._before)  # a second signal does what it would do without us
        self.signal = number


class Stopped(KeyboardInterrupt):
    """A signal ended the work at once."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.signal = number


@contextmanager
def stopping_at_once(text: str) -> Iterator[None]:
    """While active, SIGINT and SIGTERM raise `Stopped` with this text.

    Examples
    --------
    >>> import signal
    >>> try:
    ...     with stopping_at_once("nothing was written"):
    ...         signal.raise_signal(signal.SIGTERM)
    ... except Stopped as stopped:
    ...     print(stopped, stopped.signal == signal.SIGTERM)
    nothing was written True
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number, text)

    before = _install(stop)
    try:
        yield
    finally:
        _restore(before)
