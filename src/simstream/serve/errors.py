"""Errors of the service. Each kind of refusal knows its HTTP status."""

from __future__ import annotations


class ServiceError(Exception):
    """A request is refused; nothing was changed."""

    status = 400


class NotFoundError(ServiceError):
    """There is no such item, question or event."""

    status = 404


class ConflictError(ServiceError):
    """The request contradicts what is already there."""

    status = 409


class BadRequestError(ServiceError):
    """The request is malformed, or does not fit the items."""

    status = 422


class UnauthorizedError(ServiceError):
    """The key is missing or unknown."""

    status = 401


class ForbiddenError(ServiceError):
    """The key does not allow this."""

    status = 403


class TooLargeError(ServiceError):
    """The body has more bytes than allowed."""

    status = 413


class RetryError(ServiceError):
    """Not possible now; try again after `retry_after` seconds."""

    status = 503
    retry_after = 1


class BusyError(RetryError):
    """Too many events are waiting already."""


class RateError(RetryError):
    """One caller sends too many requests."""

    status = 429


class StorageError(RetryError):
    """The log could not be written; nothing of the request was kept."""

    status = 507
    retry_after = 10


class LogError(ValueError):
    """The files of a service are damaged, do not fit together, or come from a newer version."""
