"""Tables of the admin commands."""

from gateway.admin.command.tables import print_list


def test_a_list_of_requests_says_in_a_sentence_why_each_waits(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    waits = {"reason": "own_queue", "text": "31 older requests of its tenant go first.", "ahead_requests": 31}
    request = {"id": "fl-1", "tenant": "chat", "state": "queued", "age_s": 1.5}
    rows = [{**request, "waits": waits}, {**request, "waits": None}]
    print_list(rows, "requests")
    _header, waiting, running = capsys.readouterr().out.splitlines()
    assert waiting.split(maxsplit=4)[4].strip() == waits["text"]
    assert running.split()[4] == "-"
    print_list(rows, "requests", is_wide=True)
    assert "ahead_requests=31" in capsys.readouterr().out
