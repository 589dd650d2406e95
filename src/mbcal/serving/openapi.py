"""The OpenAPI document of a table of routes."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from mbcal.serving.messages import Problem
from mbcal.serving.routes import JSON, Route

Schemas = dict[type, dict[str, Any]]
"""JSON schema, or a reference to it, by type."""


def document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these routes.

    Args:
        routes: The routes; their request and response types become the document's schemas.
        version: Version of the package.
    """
    types = list({kind: None for route in routes for kind in (*route.request, *route.response)} | {Problem: None})
    references, schemas = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(types, references, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mbcal", "version": version},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(route: Route, schema_of: Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": route.handler.__name__, "summary": route.summary}
    if route.has_name:
        operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    if route.request:
        operation["requestBody"] = {"required": True, "content": _content([schema_of[kind] for kind in route.request], JSON)}
    answers = [schema_of[kind] for kind in route.response] or [{"type": "string"}]
    operation["responses"] = {"200": {"description": "OK", "content": _content(answers, route.media_type)}} | {
        str(status): {"description": HTTPStatus(status).phrase, "content": _content([schema_of[Problem]], JSON)}
        for status in route.problems
    }
    if route.needs_token:
        operation["security"] = [{"token": []}]
    return operation


def _content(schemas: list[dict[str, Any]], media_type: str) -> dict[str, Any]:
    return {media_type.split(";")[0]: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}
