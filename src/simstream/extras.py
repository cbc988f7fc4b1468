"""The one error about packages that only some uses need, and that extras install."""


class MissingExtraError(ImportError):
    """Something needs packages that are not installed.

    Its arguments are what needs them, the packages, and the extra that installs them.

    Examples
    --------
    >>> print(MissingExtraError("a figure", "matplotlib", "plot"))
    a figure needs matplotlib; install with: pip install 'simstream[plot]'
    """

    def __str__(self) -> str:
        what, packages, extra = self.args
        return f"{what} needs {packages}; install with: pip install 'simstream[{extra}]'"
