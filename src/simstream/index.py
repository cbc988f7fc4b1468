"""The earlier name of `simstream.search`, kept for code that imports it."""

from .search import *  # noqa: F403
from .search import __all__ as __all__
