"""The earlier name of `simstream.data`, kept for code that imports it."""

from .data import *  # noqa: F403
from .data import __all__ as __all__
