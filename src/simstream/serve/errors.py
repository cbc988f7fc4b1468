"""What the service says no with. Each error knows its HTTP status."""

from __future__ import annotations


class ServiceError(Exception):
    """A request is refused, and nothing was changed."""

    status = 400


class NotFoundError(ServiceError):
    """There is no such item, question or event."""

    status = 404


class ConflictError(ServiceError):
    """It contradicts what is there already."""

    status = 409


class BadRequestError(ServiceError):
    """It cannot be understood, or does not fit the items."""

    status = 422


class UnauthorizedError(ServiceError):
    """No key, or an unknown one."""

    status = 401


class ForbiddenError(ServiceError):
    """The key may not do this."""

    status = 403


class TooLargeError(ServiceError):
    """More bytes than allowed."""

    status = 413


class RetryError(ServiceError):
    """Not now; try again after `retry_after` seconds."""

    status = 503
    retry_after = 1


class BusyError(RetryError):
    """Too many events wait already."""


class RateError(RetryError):
    """Too many requests of one caller."""

    status = 429


class StorageError(RetryError):
    """The log could not be written: nothing of the request was kept."""

    status = 507
    retry_after = 10


class LogError(ValueError):
    """The files of the service do not fit together, or are of a newer version."""
