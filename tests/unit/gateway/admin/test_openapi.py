import json
from decimal import Decimal
from typing import Annotated

from pydantic import Field

from gateway.admin.models.resources import Fields
from gateway.admin.openapi import document
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


class Part(Fields):
    cost: Decimal = Decimal(1)


class Whole(Fields):
    parts: tuple[Part, ...] = ()


class Answered(Fields):
    parts: tuple[Part, ...] = ()


class Some(Query):
    limit: Annotated[int, Field(ge=1)] = 10
    cursor: str | None = None


async def nothing(_asked):
    return AdminAnswer()


def operation(**fields):
    given = {"method": "GET", "path": "/things/{id}", "role": Role.OPERATOR, "summary": "Things.", "run": nothing}
    route = Route(**{**given, **fields})
    return document([route])["paths"]["/admin/v1" + route.path][route.method.lower()]


def patch_of(model):
    described = operation(method="PATCH", merges=model, answer=model)
    return described["requestBody"]["content"]["application/merge-patch+json"]["schema"]


def test_a_patch_may_leave_out_everything_and_null_only_what_has_a_default():
    schema = patch_of(Thing)
    assert "required" not in schema
    assert schema["additionalProperties"] is False
    null = {"type": "null"}
    nullable = {name for name, each in schema["properties"].items() if null in each.get("anyOf", [])}
    assert nullable == {"weight", "limit"}


def test_an_object_inside_is_merged_too():
    inner = patch_of(Box)["properties"]["inner"]["anyOf"][0]
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
    fields = {"role": Role.ADMIN, "summary": "", "run": nothing}
    things = Route(method="POST", path="/things", body=Thing, answer=Thing, status=201, **fields)
    # What its answer says of a part differs from what it takes, so that there are two schemas of that.
    merged = Route(method="PATCH", path="/wholes", merges=Whole, answer=Answered, **fields)
    described = document([things, merged])
    references = {part.split('"')[0] for part in json.dumps(described).split('"#/components/schemas/')[1:]}
    assert references <= set(described["components"]["schemas"])
    assert {"Thing", "ProblemDetails", "Part-Input", "Part-Output"} <= references
