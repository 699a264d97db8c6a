"""Everything may happen, to two Schedulers at once: a request that arrives is submitted to one, which is then polled,
and the other is told of it in one call. They decide the same, and keep the same accounts, to the digit.
"""

from any_facts import AnyFacts, keys_of
from facts import BACKENDS, load

from policies.facts import Submitted
from policies.types import Tenant


class Twins:
    """Has the interface of a Scheduler, and tells two."""

    def __init__(self, scheduler, twin):
        self._scheduler, self._twin = scheduler, twin
        self._arriving = None
        self._compared_at = None  # of the snapshots, since which neither was told anything

    def told(self, fact):
        self._compared_at = None
        self._scheduler.told(fact)
        self._catch_up()
        if isinstance(fact, Submitted):
            self._arriving = fact
        else:
            self._twin.told(fact)

    def poll(self, now):
        self._compared_at = None
        actions, arriving = self._scheduler.poll(now), self._arriving
        if arriving is not None and arriving.now == now:
            self._arriving = None
            assert list(self._twin.arrived(arriving.request, now)) == actions
        else:
            self._catch_up()
            assert self._twin.poll(now) == actions
        assert repr(self._twin.checkpoint()) == repr(self._scheduler.checkpoint())
        self.snapshot(now)
        return actions

    def next_wakeup(self):
        self._catch_up()
        assert self._twin.next_wakeup() == self._scheduler.next_wakeup()
        return self._scheduler.next_wakeup()

    def snapshot(self, now):
        self._catch_up()
        snapshot = self._scheduler.snapshot(now)
        if now != self._compared_at:
            assert repr(self._twin.snapshot(now)) == repr(snapshot)
            self._compared_at = now
        return snapshot

    def checkpoint(self):
        self._catch_up()
        assert repr(self._twin.checkpoint()) == repr(self._scheduler.checkpoint())
        return self._scheduler.checkpoint()

    def __getattr__(self, name):
        """A view, which changes nothing."""
        return getattr(self._scheduler, name)

    def _catch_up(self):
        if self._arriving is not None:
            self._twin.told(self._arriving)
            self._arriving = None


class ArrivalFacts(AnyFacts):
    """The Scheduler that is judged has a twin. Most tenants begin without limits, for which an arrival has to wait."""

    tenants = (
        Tenant("a"),
        Tenant("b", weight=2.0),
        Tenant("c", in_flight_max=2, keys=keys_of("c")),
        Tenant("d", tier_id="gold"),
        Tenant("e", tier_id="gold", weight=0.5, queued_requests_max=3),
    )

    def begin(self, **options):
        super().begin(**options)
        twin = self.make()
        twin.load_changed([load(backend_id) for backend_id in BACKENDS], self.now)
        self.scheduler = self.recorder._scheduler = Twins(self.scheduler, twin)
