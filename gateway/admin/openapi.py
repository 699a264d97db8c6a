"""OpenAPI 3.1 document of the admin API, generated from its route table and the models that validate requests."""

from collections.abc import Iterable, Mapping
from importlib import metadata
from inspect import cleandoc
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gateway.admin.idempotency import HEADER, KEY_PATTERN
from gateway.admin.problems import PROBLEM_TYPE, ProblemDetails
from gateway.admin.routes import MERGE_PATCH, ROOT, Query, Route

Schema = dict[str, Any]

REF_TEMPLATE = "#/components/schemas/{model}"

REFUSALS: Mapping[int, str] = {
    400: "The request cannot be read.",
    401: "There is no valid credential.",
    403: "The caller may not do this: its role is too low, or its key is for the other port.",
    404: "There is no such thing.",
    409: "It does not go together with what is there.",
    412: "It has changed since the version that If-Match names, or what If-None-Match names is there.",
    413: "The body is too large.",
    415: "The body is not of a type that is read here.",
    422: "A field is wrong; errors names each.",
    429: "Too many failures to sign in from this address, or too many changes.",
    503: "The state cannot be written or read now, or no replica leads.",
}


def document(routes: Iterable[Route]) -> Schema:
    """Return the OpenAPI document of these routes."""
    routes = list(routes)
    schemas, paths = _schemas(routes), dict[str, Schema]()
    for route in routes:
        paths.setdefault(ROOT + route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fairlead admin API",
            "version": metadata.version("fairlead"),
            "description": "Tenants, tiers, keys, backends and policies of a running gateway, changed while it runs.",
        },
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas,
        },
    }


def _patch_schema(model: type[BaseModel], schemas: Schema) -> Schema:
    """The schema of a merge patch: any part of the model, where null resets a field to its default (RFC 7396).
    `schemas` has the model by its name, and all that it refers to.
    """
    return _part_of(schemas[model.__name__], schemas)


def _part_of(whole: Schema, definitions: Schema) -> Schema:
    """The schema for any part of this object, and of the objects in it, which are merged too."""
    required = whole.get("required", [])
    parts = {name: _inside(schema, definitions) for name, schema in whole["properties"].items()}
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: part if name in required else _or_null(part) for name, part in parts.items()},
    }


def _inside(schema: Schema, definitions: Schema) -> Schema:
    """The schema in which an object that it refers to is replaced by any part of that object."""
    if "anyOf" in schema:
        return schema | {"anyOf": [_inside(choice, definitions) for choice in schema["anyOf"]]}
    definition = definitions.get(schema.get("$ref", "").rpartition("/")[2], {})
    return _part_of(definition, definitions) if "properties" in definition else schema


def _or_null(schema: Schema) -> Schema:
    choices = schema.get("anyOf", [schema])
    if {"type": "null"} in choices:
        return schema
    return {"anyOf": [*choices, {"type": "null"}]}


def _schemas(routes: Iterable[Route]) -> Schema:
    named: dict[type[BaseModel | msgspec.Struct], None] = {ProblemDetails: None}
    for route in routes:
        named |= dict.fromkeys(model for model in (route.body, route.answer, route.merges) if model is not None)
    models = [model for model in named if issubclass(model, BaseModel)]
    structs = [model for model in named if issubclass(model, msgspec.Struct)]
    _, definitions = models_json_schema(
        [(model, "serialization" if _is_answer(model, routes) else "validation") for model in models],
        ref_template=REF_TEMPLATE,
    )
    _, schemas = msgspec.json.schema_components(structs, ref_template=REF_TEMPLATE.format(model="{name}"))
    for schema in schemas.values():
        schema["description"] = cleandoc(schema["description"])
        if "properties" in schema:
            schema["required"] = list(schema["properties"])  # an answer has all of its members
    return {**definitions["$defs"], **schemas}


def _is_answer(model: type[BaseModel], routes: Iterable[Route]) -> bool:
    return all(model not in (route.body, route.merges) for route in routes)


def _operation(route: Route, schemas: Schema) -> Schema:
    operation: Schema = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "description": "For callers that have not signed in."
        if route.role is None
        else f"For the role {route.role.name.lower()} and above.",
        "parameters": [*_path_parameters(route), *_query_parameters(route.query), *_header_parameters(route)],
        "responses": {str(status): _answer(route, status) for status in _statuses(route)}
        | {str(status): _refusal(status, route) for status in _refusals(route)},
    }
    if route.role is None:
        operation["security"] = []
    if route.body is not None:
        content = {"application/json": {"schema": _ref(route.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    if route.merges is not None:
        schema = _patch_schema(route.merges, schemas)
        operation["requestBody"] = {"required": True, "content": {MERGE_PATCH: {"schema": schema}}}
    return operation


def _operation_id(route: Route) -> str:
    words = [part.strip("{}") for part in route.path.replace(".", "/").split("/") if part]
    return "_".join([route.method.lower(), *words])


def _refusals(route: Route) -> Iterable[int]:
    """The error statuses of this route."""
    yield from (400, 401, 403, 429)
    if route.names and not route.creates:
        yield 404
    if route.conflicts is not None:
        yield 409
    if route.versioned and route.changes:
        yield 412
    if route.body is not None or route.merges is not None:
        yield from (413, 415)
    if route.body is not None or route.merges is not None or route.query is not None:
        yield 422
    if route.changes or route.stored or route.live:
        yield 503


def _refusal(status: int, route: Route) -> Schema:
    text = route.conflicts if status == 409 and route.conflicts else REFUSALS[status]
    return {"description": text, "content": {PROBLEM_TYPE: {"schema": _ref(ProblemDetails)}}}


def _statuses(route: Route) -> tuple[int, ...]:
    """The success statuses of this route."""
    return (route.status, 201) if route.creates else (route.status,)


def _answer(route: Route, status: int) -> Schema:
    if route.media_types:
        return {
            "description": "A file.",
            "content": {each: {"schema": {"type": "string"}} for each in route.media_types},
        }
    if route.answer is None:
        return {"description": "It is done."}
    content: Schema = {"application/json": {"schema": _ref(route.answer)}}
    if route.stream is not None:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    answer: Schema = {"description": "What is there now.", "content": content}
    headers: Schema = {}
    if route.versioned:
        headers["ETag"] = {"required": True, "description": "Its version, for If-Match.", "schema": {"type": "string"}}
    if status in (201, 202):
        headers["Location"] = {"required": True, "description": "Where it is.", "schema": {"type": "string"}}
    return answer | ({"headers": headers} if headers else {})


def _path_parameters(route: Route) -> list[Schema]:
    return [
        {"name": name, "in": "path", "required": True, "schema": dict(route.path_schemas.get(name, _NAME_SCHEMA))}
        for name in route.names
    ]


_NAME_SCHEMA: Schema = {"type": "string", "minLength": 1}


def _query_parameters(query: type[Query] | None) -> list[Schema]:
    if query is None:
        return []
    schema = query.model_json_schema(ref_template=REF_TEMPLATE)
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _given(each)}
        for name, each in schema["properties"].items()
    ]


def _given(schema: Schema) -> Schema:
    """The schema of a parameter without null: null stands for an absent parameter."""
    choices = [choice for choice in schema.get("anyOf", []) if choice != {"type": "null"}]
    return choices[0] if len(choices) == 1 else {key: value for key, value in schema.items() if key != "title"}


def _header_parameters(route: Route) -> list[Schema]:
    return [
        {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
        for name, text, schema in _headers(route)
    ]


def _headers(route: Route) -> Iterable[tuple[str, str, Schema]]:
    if route.versioned and route.changes and route.names:
        text = "The ETag of the version that is to be changed, or * for any; without it, whatever is there."
        yield "If-Match", text, {"type": "string"}
    if route.creates:
        text = "*: only if there is none yet. Or the ETag of a version that is not to be replaced."
        yield "If-None-Match", text, {"type": "string"}
    if route.method == "POST" and route.role is not None:
        text = "Sent again with the same key within 24 hours it is done once; another request by that key is 422."
        yield HEADER, text, {"type": "string", "pattern": KEY_PATTERN}


def _ref(model: type[BaseModel | msgspec.Struct]) -> Schema:
    return {"$ref": REF_TEMPLATE.format(model=model.__name__)}
