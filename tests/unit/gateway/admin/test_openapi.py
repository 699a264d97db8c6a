import json
from typing import Annotated

from pydantic import Field

from gateway.admin.models.resources import Fields
from gateway.admin.openapi import document, patch_schema
from gateway.admin.routes import AdminAnswer, Query, Role, Route


class Thing(Fields):
    name: Annotated[str, Field(min_length=1)]
    weight: Annotated[float, Field(gt=0)] = 1.0
    limit: int | None = None


class Inner(Fields):
    width: float
    depth: float = 1.0


class Box(Fields):
    inner: Inner | None = None


class Some(Query):
    limit: Annotated[int, Field(ge=1)] = 10
    cursor: str | None = None


async def nothing(_asked):
    return AdminAnswer()


def operation(**fields):
    given = {"method": "GET", "path": "/things/{id}", "role": Role.OPERATOR, "summary": "Things.", "run": nothing}
    route = Route(**{**given, **fields})
    return document([route])["paths"]["/admin/v1" + route.path][route.method.lower()]


def test_a_patch_may_leave_out_everything_and_null_only_what_has_a_default():
    schema = patch_schema(Thing)
    assert "required" not in schema
    assert schema["additionalProperties"] is False
    null = {"type": "null"}
    nullable = {name for name, each in schema["properties"].items() if null in each.get("anyOf", [])}
    assert nullable == {"weight", "limit"}


def test_an_object_inside_is_merged_too():
    inner = patch_schema(Box)["properties"]["inner"]["anyOf"][0]
    assert "required" not in inner
    assert {"type": "null"} in inner["properties"]["depth"]["anyOf"]
    assert "anyOf" not in inner["properties"]["width"], "there is no default to go back to"


def test_parameters_of_the_query_are_optional_and_never_null():
    parameters = [each for each in operation(query=Some)["parameters"] if each["in"] == "query"]
    assert [each["name"] for each in parameters] == ["limit", "cursor"]
    assert not any(each["required"] for each in parameters)
    assert "null" not in json.dumps(parameters)


def test_an_operation_says_its_role_and_every_way_in_which_it_refuses():
    described = operation(method="PATCH", merges=Thing, answer=Thing, versioned=True, conflicts="It clashes.")
    assert "operator" in described["description"]
    assert set(described["responses"]) == {
        "200", "400", "401", "403", "404", "409", "412", "413", "415", "422", "429", "503",
    }  # fmt: skip
    assert described["responses"]["409"]["description"] == "It clashes."
    assert described["responses"]["200"]["headers"]["ETag"]["required"]
    assert list(described["requestBody"]["content"]) == ["application/merge-patch+json"]


def test_every_reference_leads_to_a_schema():
    route = Route(
        method="POST", path="/things", role=Role.ADMIN, summary="", run=nothing, body=Thing, answer=Thing, status=201
    )
    described = document([route])
    references = {part.split('"')[0] for part in json.dumps(described["paths"]).split('"#/components/schemas/')[1:]}
    assert references <= set(described["components"]["schemas"])
    assert {"Thing", "ProblemDetails"} <= references
