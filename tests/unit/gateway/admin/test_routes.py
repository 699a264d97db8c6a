import pytest

from gateway.admin.routes import AdminAnswer, Role, Route, RouteTable, path_of


async def nothing(_asked):
    return AdminAnswer()


def route(method, path):
    return Route(method=method, path=path, role=Role.VIEWER, summary="", run=nothing)


TABLE = RouteTable([route("GET", "/tenants"), route("GET", "/tenants/{id}"), route("DELETE", "/tenants/{id}")])


def test_a_path_is_split_before_it_is_decoded_so_that_a_name_may_hold_a_slash():
    methods, values = TABLE.find("/admin/v1/tenants/org%2Falice")
    assert sorted(methods) == ["DELETE", "GET"]
    assert values == {"id": "org/alice"}


@pytest.mark.parametrize("name", ["alice", "a/b", "a b", "100%", "ä", "..", "a?b#c"])
def test_where_a_thing_is_said_to_be_it_is_found(name):
    assert TABLE.find("/admin/v1" + path_of("tenants", name))[1] == {"id": name}


@pytest.mark.parametrize(
    "path", ["/", "/admin/v1", "/admin/v1/", "/admin/v1/tenants/", "/admin/v1/tenants/a/b", "/admin/v2/tenants"]
)
def test_no_other_path_is_there(path):
    assert TABLE.find(path) is None


def test_a_method_stands_once_at_a_path():
    with pytest.raises(AssertionError):
        RouteTable([route("GET", "/a"), route("GET", "/a")])
