"""What tests of a cluster share, beside fixtures."""

import time

from api import RefusedError

OLDEST = (1, 25)  # that the chart is for
PATIENCE_S = 60.0


def make_namespace(api, name):
    """With the account that every namespace has, which a controller makes where there is one."""
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    try:
        api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}, name)
    except RefusedError as refused:
        if refused.status != 409:
            raise
    return name


def until(condition):
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, "did not happen in time"
        time.sleep(0.1)
