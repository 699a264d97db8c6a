"""Server-sent events as the admin client reads them (WHATWG HTML, 9.2)."""

from gateway.admin.command.client import _events


def events(text):
    return list(_events(text.encode().splitlines(keepends=True)))


def test_events_have_names_and_data():
    assert events('id: 1\nevent: state\ndata: {"a": 1}\n\nevent:patch\r\ndata:{}\r\n\r\n') == [
        ("state", {"a": 1}),
        ("patch", {}),
    ]


def test_a_name_is_for_one_event_and_data_may_have_lines():
    assert events("event: state\ndata: 1\n\ndata: [1,\ndata: 2]\n\n") == [("state", 1), ("message", [1, 2])]


def test_comments_and_an_event_that_is_cut_off_give_nothing():
    assert events(": still here\n\nevent: state\n\nevent: state\ndata: 1\n") == []
