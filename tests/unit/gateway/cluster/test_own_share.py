"""A member that is alone has 1/N of every limit, N the most members that were listed within the last minute."""

from gateway.cluster.own_share import COUNT_S, OwnShare
from policies.facts import LoadChanged
from policies.types import ALONE, BackendLoad, KeyLimits, ReplicaShare, Tenant

TENANT = Tenant("t", in_flight_max=12, keys={"k": KeyLimits(requests_per_minute_max=6)})


def share() -> OwnShare:
    return OwnShare("b", {"t": TENANT}.get)


def test_all_of_a_limit_is_its_own_while_it_is_not_alone():
    own = share()
    own.listed(["a", "b"], 0.0)
    assert (own.part, own.of_tenant("t")) == (ALONE, TENANT)


def test_its_part_is_by_the_most_members_of_the_last_minute():
    own = share()
    own.listed(["a", "b", "c"], 0.0)
    own.listed(["b"], 1.0)
    assert own.divide(COUNT_S) == ReplicaShare(3, 1)
    assert own.of_tenant("t").in_flight_max == 4
    assert own.of_tenant("t").keys["k"].requests_per_minute_max == 2
    (load,) = own.of_fact(LoadChanged(0.0, (BackendLoad("x"),))).loads
    assert load.share == own.part
    assert own.divide(COUNT_S + 2.0) == ReplicaShare(1, 0)
    assert own.of_tenant("none") is None


def test_its_tenants_are_divided_anew_when_it_is_alone_again():
    own = share()
    own.listed(["a", "b"], 0.0)
    own.divide(0.0)
    assert own.of_tenant("t").in_flight_max == 6
    own.end()
    own.listed(["a", "b", "c", "d"], 1.0)
    own.divide(1.0)
    assert own.of_tenant("t").in_flight_max == 3
