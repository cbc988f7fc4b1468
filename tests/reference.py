"""The eager references, which are part of `simstream_repro`."""

from simstream_repro.reference import *  # noqa: F403
