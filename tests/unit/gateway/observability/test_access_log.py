"""One line per request, whatever the disk does, and never in the request's way."""

import json
import os
import threading
import time

import pytest

from gateway.observability import batches
from gateway.observability.access_log import AccessLog, AccessRecord

RECORD = AccessRecord(
    ts=1.5,
    request_id="r-1",
    client="10.0.0.1",
    tenant="alice",
    model="m",
    endpoint="/v1/chat/completions",
    status=200,
    reason=None,
    backend="b",
    stream=True,
    queue_ms=1.0,
    ttft_ms=None,
    duration_ms=3.0,
    prompt_tokens=4,
    cached_tokens=0,
    output_tokens=5,
    cost="0.000012",
    currency="EUR",
    ttft_met=True,
    tpot_met=False,
    envelope_met=True,
    tokens_in_time=5,
    estimated=False,
    outcome="completed",
)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_every_field_in_json(tmp_path):
    log = AccessLog(str(tmp_path / "log"))
    log.write(RECORD)
    log.close()
    assert lines(tmp_path / "log") == [RECORD]


def test_records_are_written_in_order_and_after_what_was_there(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"old":1}\n')
    log = AccessLog(str(path), interval_s=0.001)
    for number in range(1000):
        log.write(RECORD | {"ts": float(number)})
    log.close()
    assert [line["ts"] for line in lines(path)[1:]] == list(range(1000))


def test_what_does_not_fit_in_the_queue_is_dropped_and_counted(tmp_path):
    log = AccessLog(str(tmp_path / "log"), records_max=3, interval_s=60)
    for _ in range(5):
        log.write(RECORD)
    log.close()
    assert (len(lines(tmp_path / "log")), log.lost) == (3, 2)


def test_the_file_may_be_rotated_at_any_time(tmp_path):
    path = tmp_path / "log"
    log = AccessLog(str(path), interval_s=60)
    path.rename(tmp_path / "log.1")
    log.write(RECORD)
    log.close()
    assert len(lines(path)) == 1
    assert lines(tmp_path / "log.1") == []


def test_a_disk_that_fails_costs_lines_and_is_counted(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    log = AccessLog(str(folder / "log"), interval_s=60)
    (folder / "log").unlink()
    folder.rmdir()
    log.write(RECORD)
    log.close()
    assert log.lost == 1


def test_a_log_that_cannot_be_opened_is_told_at_start(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        AccessLog(str(tmp_path / "none" / "log"))


def test_a_pipe_that_nobody_reads_keeps_no_process_from_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "CLOSE_S_MAX", 0.1)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    log = AccessLog(str(tmp_path / "pipe"))
    for _ in range(1_000):  # more than a pipe holds
        log.write(RECORD)
    closing = threading.Thread(target=log.close, daemon=True)
    closing.start()
    closing.join(5.0)
    has_ended = not closing.is_alive()
    os.close(reader)  # lets go what may still write
    assert has_ended


def test_a_record_that_cannot_be_written_costs_its_batch_and_not_the_log(tmp_path, caplog):
    log = AccessLog(str(tmp_path / "log"), interval_s=0.01)
    for lost in (1, 2):
        log.write({1: "a name that is no text"})
        deadline = time.monotonic() + 5.0
        while log.lost < lost and time.monotonic() < deadline:
            time.sleep(0.01)
        assert log.lost == lost
    log.write(RECORD)
    log.close()
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    assert [each.message for each in caplog.records] == [f"log to {tmp_path}/log: 1 records are lost"]


def test_standard_output_is_a_dash(capfd):
    log = AccessLog("-")
    log.write(RECORD)
    log.close()
    assert json.loads(capfd.readouterr().out)["request_id"] == "r-1"
