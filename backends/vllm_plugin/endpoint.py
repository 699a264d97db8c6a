"""GET /fairlead/steps?since=N on vLLM's own port: the steps from number N on, and the engines' state.

The reports show how busy and how fast a server is, so the path requires the operator's token (else 401). Without a
token the path exists only if the operator opens it with FAIRLEAD_OPEN.
"""

import hmac
import os
from typing import Annotated, Any, Final

from fastapi import FastAPI, Header, HTTPException, Query

from backends.vllm_plugin.options import read_options
from backends.vllm_plugin.stat_logger import REPORTS

PATH: Final = "/fairlead/steps"


class StepsEndpoint:
    """The handler of GET /fairlead/steps on vLLM's port, from which gateways learn step times and load. It returns the
    steps from number `since` on, and the state of each engine. The plugin adds it to vLLM as an EndpointPlugin
    (vllm.endpoint_plugins).
    """

    name = "fairlead"
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        """Add the path to vLLM's app, if the operator set a token or opened the path."""
        options = read_options(os.environ)
        if options.token is None and not options.is_open:
            return
        expected = None if options.token is None else f"Bearer {options.token}".encode()

        async def steps(
            since: Annotated[int, Query(ge=0)] = 0, authorization: Annotated[str, Header()] = ""
        ) -> dict[str, Any]:
            if expected is not None and not hmac.compare_digest(authorization.encode(), expected):
                raise HTTPException(401, "Unauthorized")
            return REPORTS.since(since)

        app.get(PATH)(steps)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        return
