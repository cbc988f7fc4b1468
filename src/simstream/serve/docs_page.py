"""A page about the routes, made from the OpenAPI description: no script, nothing from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any


def docs_page(openapi: dict[str, Any]) -> str:
    """HTML of all routes with what they do.

    Examples
    --------
    >>> page = docs_page({"info": {"title": "<x>", "version": "1"}, "paths": {}})
    >>> "<x>" in page, "&lt;x&gt;" in page
    (False, True)
    """
    rows = [
        _row(method.upper(), path, operation)
        for path, operations in openapi["paths"].items()
        for method, operation in operations.items()
    ]
    title = f"{escape(openapi['info']['title'])} {escape(openapi['info']['version'])}"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><h1>{title}</h1>"
        '<p>The whole description: <a href="/openapi.json">openapi.json</a></p>'
        f"<table><tr><th>route<th>what it does<th>takes</tr>{''.join(rows)}</table></html>"
    )


def _row(method: str, path: str, operation: dict[str, Any]) -> str:
    takes = [
        f"{parameter['name']} ({parameter['in']})" for parameter in operation.get("parameters", [])
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    for schema in (body.get("schema", {}), *body.get("schema", {}).get("anyOf", [])):
        if "$ref" in schema:
            takes.append(f"{schema['$ref'].rpartition('/')[2]} (body)")
    about = operation.get("description") or operation.get("summary", "")
    cells = (f"{method} {path}", about, ", ".join(takes))
    return "<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells) + "</tr>"
