"""What the API says of itself: its OpenAPI description, and the same as a page."""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import FastAPI

from .access import REFUSALS, KeyRing, UnauthorizedError, scope_needed
from .schemas import Problem

_SCHEME = "key"

_HEADERS = {
    "X-Request-Id": "That of the request (letters, digits, ._-, at most 128), or a new one.",
    "Retry-After": "Seconds after which the request may be sent again.",
    "WWW-Authenticate": "Always Bearer.",
}

#: Where an item that was added, replaced, listed or asked about can be found: operation, status, its id.
_LINKS = {
    "add_items": ("201", "$request.body#/items/0/id"),
    "put_item": ("200", "$request.path.id"),
    "list_items": ("200", "$response.body#/items/0/id"),
    "get_question": ("200", "$response.body#/anchor/id"),
}


def refusals() -> dict[int | str, dict[str, Any]]:
    """How any request may be refused, for the description of an app."""
    return {kind.status: {"description": str(kind.__doc__), "model": Problem} for kind in REFUSALS}


def describe(app: FastAPI, keys: KeyRing) -> None:
    """Add to an app's description what every route has in common: keys, and headers of answers.

    What it says of keys changes once there are some: until then they are optional.
    """
    of_routes = app.openapi

    def openapi() -> dict[str, Any]:
        description = of_routes()
        parts = description.setdefault("components", {})
        parts["securitySchemes"] = {
            _SCHEME: {
                "type": "http",
                "scheme": "bearer",
                "description": "A key made with `simstream keys add`; each route names its scope.",
            }
        }
        parts["headers"] = {
            name: {"description": about, "required": True, "schema": {"type": "string"}}
            for name, about in _HEADERS.items()
        }
        for path, operations in description["paths"].items():
            for method, operation in operations.items():
                scope = scope_needed(method.upper(), path)
                if scope is not None:
                    optional: list[Any] = [] if keys.is_used else [{}]
                    operation["security"] = [{_SCHEME: [scope]}, *optional]
                if operation["operationId"] in _LINKS:
                    status, identity = _LINKS[operation["operationId"]]
                    operation["responses"][status]["links"] = {
                        name: {"operationId": name, "parameters": {"id": identity}}
                        for name in ("get_item", "delete_item")
                    }
                for status, answer in operation["responses"].items():
                    answer["headers"] = {
                        **answer.get("headers", {}),
                        **{
                            name: {"$ref": f"#/components/headers/{name}"} for name in _sent(status)
                        },
                    }
        return description

    app.openapi = openapi  # type: ignore[method-assign]


def _sent(status: str) -> list[str]:
    """Headers that every answer of a status has."""
    names = ["X-Request-Id"]
    if status == str(UnauthorizedError.status):
        names.append("WWW-Authenticate")
    if status in ("429", "503", "507"):
        names.append("Retry-After")
    return names


def docs_page(openapi: dict[str, Any]) -> str:
    """The API reference as HTML, from the OpenAPI description: no script, nothing from other sites.

    Examples
    --------
    >>> page = docs_page({"info": {"title": "<x>", "version": "1"}, "paths": {}})
    >>> "<x>" in page, "&lt;x&gt;" in page
    (False, True)
    """
    rows = []
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            takes = [f"{one['name']} ({one['in']})" for one in operation.get("parameters", [])]
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for schema in (body.get("schema", {}), *body.get("schema", {}).get("anyOf", [])):
                if "$ref" in schema:
                    takes.append(f"{schema['$ref'].rpartition('/')[2]} (body)")
            about = operation.get("description") or operation.get("summary", "")
            cells = (f"{method.upper()} {path}", about, ", ".join(takes))
            rows.append("<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells) + "</tr>")
    title = f"{escape(openapi['info']['title'])} {escape(openapi['info']['version'])}"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><h1>{title}</h1>"
        '<p>The complete description: <a href="openapi.json">openapi.json</a></p>'
        f"<table><tr><th>Route<th>What it does<th>Takes</tr>{''.join(rows)}</table></html>"
    )
