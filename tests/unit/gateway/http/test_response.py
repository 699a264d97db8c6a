"""What a response is on the wire, and that no field of one can begin another."""

import pytest

from gateway.http.response import PIECE_BYTES, EventStream, Response, head


def lines(data):
    first, *fields = data.decode().removesuffix("\r\n\r\n").split("\r\n")
    return first, dict(field.split(": ", 1) for field in fields)


@pytest.mark.parametrize(
    ("is_new", "keeps", "version", "says"),
    [
        (True, True, "1.1", None),
        (True, False, "1.1", "close"),
        (False, True, "1.0", "keep-alive"),
        (False, False, "1.0", None),
    ],
)
def test_a_head_says_what_the_version_does_not_imply(is_new, keeps, version, says):
    first, fields = lines(head(200, {"x-a": "b"}, is_new=is_new, keeps=keeps))
    assert first == f"HTTP/{version} 200 OK"
    assert fields.pop("date").endswith(" GMT")
    assert fields == {"x-a": "b"} | ({} if says is None else {"connection": says})


@pytest.mark.parametrize("value", ["a\r\nX-B: c", "a\nX-B: c", "a\rX-B: c", "a\0"])
def test_a_field_cannot_begin_another(value):
    with pytest.raises(ValueError, match="line break"):
        head(200, {"x-a": value}, is_new=True, keeps=True)


@pytest.mark.parametrize("status", [599, 299])
def test_a_status_without_a_name_has_none(status):
    assert head(status, {}, is_new=True, keeps=True).startswith(b"HTTP/1.1 %d \r\n" % status)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b"ab", {"content-length": "2", "content-type": "application/octet-stream"}),
        (200, b"", {"content-length": "0"}),
        (204, b"", {}),
        (304, b"", {}),
    ],
)
def test_a_whole_response_declares_its_length_where_it_may_have_a_body(status, body, expected):
    _, fields = lines(Response(status, body=body).head(is_new=True, keeps=True))
    del fields["date"]
    assert fields == expected


@pytest.mark.parametrize(("is_chunked", "sent"), [(True, [b"2\r\nab\r\n", b"0\r\n\r\n"]), (False, [b"ab"])])
def test_a_stream_is_framed_for_who_knows_chunks(is_chunked, sent):
    written = []
    stream = EventStream(written.append, 200, is_chunked=is_chunked)
    stream.write(b"ab")
    stream.end()
    assert written == sent


def test_pieces_are_longer_than_a_transport_holds():
    from gateway.http.connection import WAITING_BYTES_MAX  # noqa: PLC0415

    assert PIECE_BYTES > WAITING_BYTES_MAX
