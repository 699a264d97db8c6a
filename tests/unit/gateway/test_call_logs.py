"""The logs of calls end at once, whoever reads them, and what they have lost is counted."""

from gateway.app import CallLogs
from gateway.config import Config
from gateway.observability.metrics.instruments import LINES_LOST


def make_logs(folder):
    return CallLogs(
        Config.model_validate(
            {name: {"enabled": True, "path": str(folder / name)} for name in ("access_log", "trace_log")}
        ),
        writes_lines=False,
    )


async def test_lost_lines_of_the_gateways_own_log_are_counted_too(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.app.lines_lost", lambda: 3)
    logs = make_logs(tmp_path)
    assert logs.lost()[LINES_LOST] == {("access",): 0, ("trace",): 0, ("gateway",): 3}
    await logs.close()
