"""Spans of OpenTelemetry: requests, and the searches, writes and learning that they cause.

Nothing is imported until `start_tracing` is called, and without it a span costs a function call. Requests are
part of the trace that their `traceparent` header names. Learning is not part of a request: its spans have
traces of their own, and the positions of the log that they cover.

Instrumentations of FastAPI, its own among them, note the address of a request, which may name items. These
spans have its template instead, and like the log nothing that a request contains.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from .. import __version__
from ..extras import MissingExtraError

#: Asks for spans, by the standard of OpenTelemetry; OTEL_SDK_DISABLED=true takes it back.
_ASKING = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

#: The text of an error may name items and keys, and a refused request is not a failure of the service.
_SILENT = {"record_exception": False, "set_status_on_exception": False}

_NO_SPAN: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
_tracer: Any = None


def is_asked_for() -> bool:
    """Whether environment variables ask for spans."""
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not is_disabled and any(os.environ.get(name) for name in _ASKING)


def start_tracing(exporter: Any = None) -> Callable[[], None]:
    """Send spans to an exporter; return a function that sends what is left and stops.

    Without an exporter they go over HTTP (OTLP) to where the standard variables say, by default to port 4318
    of this machine.
    """
    global _tracer
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter()
    except ImportError as error:
        raise MissingExtraError("sending spans", "OpenTelemetry", "otel") from error
    name = os.environ.get("OTEL_SERVICE_NAME", "simstream")
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    _tracer = provider.get_tracer("simstream", __version__)

    def stop() -> None:
        global _tracer
        _tracer = None
        provider.shutdown()

    return stop


def span(name: str, **attributes: Any) -> contextlib.AbstractContextManager[Any]:
    """A span around a block, within the current one; the block gets None if spans are off.

    Examples
    --------
    >>> with span("search", k=10) as one:
    ...     print(one)
    None
    """
    if _tracer is None:
        return _NO_SPAN
    return _tracer.start_as_current_span(  # type: ignore[no-any-return]
        name,
        attributes={f"simstream.{key}": value for key, value in attributes.items()},
        **_SILENT,
    )


def request_span(
    method: str, headers: Mapping[str, str], request_id: str
) -> contextlib.AbstractContextManager[Any]:
    """The span of a request, in the trace that its headers name."""
    if _tracer is None:
        return _NO_SPAN
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    return _tracer.start_as_current_span(  # type: ignore[no-any-return]
        method,
        context=extract(headers),
        kind=SpanKind.SERVER,
        attributes={"http.request.method": method, "simstream.request_id": request_id},
        **_SILENT,
    )


def end_request(span: Any, method: str, route: str, status: int) -> None:
    """Note in the span of a request, if it has one, where it went and how it ended."""
    if span is None:
        return
    from opentelemetry.trace import StatusCode

    span.update_name(f"{method} {route}")
    span.set_attributes({"http.route": route, "http.response.status_code": status})
    if status >= 500:
        span.set_status(StatusCode.ERROR)
