"""Another path to `differences`, for code that imports it from here."""

from .facts import differences as differences
