"""Demo routes: two tenants that call the gateway for two minutes, where the embedded engine answers."""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.admin.models.resources import Fields
from gateway.admin.problems import AdminProblem
from gateway.admin.routes import AdminAnswer, AdminRequest, Role, Route
from gateway.steering.demo import FLOOD, QUIET, Demo


class DemoResource(Fields):
    """The state of the demo, in which two tenants call this gateway for two minutes. `tenants`: the one that calls now
    and then, and the one that calls as much as it can. `ends_at`: seconds since 1970.
    """

    tenants: list[str]
    ends_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRoutes:
    """The admin routes that start and stop the demo, in which two tenants call this gateway for two minutes."""

    demo: Demo

    def routes(self) -> Iterator[Route]:
        yield Route(
            method="POST", path="/demo", role=Role.OPERATOR,
            summary="Let two demo tenants call this gateway for two minutes, one quiet and one that floods.",
            run=self.begin, answer=DemoResource, status=202,
            conflicts="The demo runs, or there are several processes, or other backends than the embedded engine.",
        )  # fmt: skip
        yield Route(
            method="DELETE", path="/demo", role=Role.OPERATOR, summary="End the demo. Without one it does nothing.",
            run=self.end, status=204,
        )  # fmt: skip

    async def begin(self, asked: AdminRequest) -> AdminAnswer:
        target = self.demo.target()
        if target is None:
            raise AdminProblem(409, "the demo is for a gateway of one process whose backend is the embedded engine")
        if self.demo.is_running:
            raise AdminProblem(409, "the demo runs")
        self.demo.begin(target, actor=asked.caller.name)
        return AdminAnswer(DemoResource(tenants=[QUIET, FLOOD], ends_at=int(self.demo.ends_at_s)))

    async def end(self, _asked: AdminRequest) -> AdminAnswer:
        await self.demo.stop()
        return AdminAnswer()
