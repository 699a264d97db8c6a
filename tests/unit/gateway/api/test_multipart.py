"""Forms: read strictly, changed without touching the file."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.bodies import read_body
from gateway.api.calls import CallLimits, parse_call
from gateway.api.endpoints import TRANSCRIPTIONS
from gateway.api.errors import BadRequest
from gateway.api.multipart import FIELD_BYTES_MAX, PARTS_MAX, read_form

LIMITS = CallLimits(choices_max=4, prompts_max=3, inputs_max=5, output_tokens_max=1000, logprobs_max=20)
SOUND = bytes(range(256)) * 40 + b"\r\n--b\r\n--other"
TYPE = "multipart/form-data; boundary=boundary42"


def part(name, value, *, filename=None, head=b""):
    more = b"" if filename is None else b'; filename="%b"' % filename
    value = value if isinstance(value, bytes) else value.encode()
    return b'--boundary42\r\nContent-Disposition: form-data; name="%b"%b\r\n%b\r\n%b\r\n' % (name, more, head, value)


def form(*parts, end=b"--boundary42--\r\n"):
    return b"".join(parts) + end


FILE = part(b"file", SOUND, filename=b"a.wav", head=b"Content-Type: audio/wav\r\n")
PLAIN = form(part(b"model", "whisper"), part(b"language", "en"), FILE)


def call(*parts):
    return parse_call(TRANSCRIPTIONS, read_body(TYPE, form(*parts, FILE), multipart=True), LIMITS)


def sent(parsed, *, usage=True, continuous=True):
    return read_form(parsed.body.content_type, parsed.body.asking(usage=usage, continuous=continuous))


def test_the_short_fields_are_read_and_the_file_is_only_measured():
    read = read_form(TYPE, PLAIN)
    assert read.fields == {"model": "whisper", "language": "en"}
    assert read.file_bytes == len(SOUND)


def test_of_several_of_one_name_the_last_one_counts_as_in_vllm():
    assert read_form(TYPE, form(part(b"n", "1"), part(b"n", "3"))).fields == {"n": "3"}


@pytest.mark.parametrize(
    "content_type",
    ['multipart/form-data; boundary="boundary42"', "Multipart/Form-Data;boundary=boundary42", f" {TYPE}".strip()],
)
def test_a_boundary_may_be_quoted(content_type):
    assert read_form(content_type, PLAIN).fields["model"] == "whisper"


def test_a_form_that_no_rule_concerns_is_the_same_bytes():
    parsed = parse_call(TRANSCRIPTIONS, read_body(TYPE, PLAIN, multipart=True), LIMITS)
    assert parsed.body.asking(usage=True, continuous=True) is PLAIN
    assert parsed.body.content_type == TYPE


def test_a_call_is_what_its_fields_say():
    parsed = call(
        part(b"model", "whisper"), part(b"stream", "true"), part(b"n", "2"), part(b"max_completion_tokens", "9")
    )
    assert (parsed.stream, parsed.choices, parsed.output_tokens_max) == (True, 2, 18)
    assert parsed.prompt_bytes > 1


def test_a_longer_sound_is_a_longer_prompt():
    short = parse_call(TRANSCRIPTIONS, read_body(TYPE, form(FILE), multipart=True), LIMITS).prompt_bytes
    longer = form(part(b"file", SOUND * 10, filename=b"a.wav"))
    assert parse_call(TRANSCRIPTIONS, read_body(TYPE, longer, multipart=True), LIMITS).prompt_bytes > 8 * short


def test_a_stream_is_made_to_report_usage_and_the_file_stays_as_it_is():
    parsed = call(part(b"stream", "true"), part(b"stream_include_usage", "false"))
    read = sent(parsed)
    assert read.fields == {"stream": "true", "stream_include_usage": "true", "stream_continuous_usage_stats": "true"}
    assert FILE in read.body
    assert sent(parsed, continuous=False).fields == {"stream": "true", "stream_include_usage": "true"}
    assert sent(parsed, usage=False, continuous=False).fields == {"stream": "true", "stream_include_usage": "false"}
    assert not parsed.client_wants_usage


def test_what_a_client_asks_for_itself_passes():
    parsed = call(
        part(b"stream", "true"), part(b"stream_include_usage", "1"), part(b"stream_continuous_usage_stats", "yes")
    )
    assert (parsed.client_wants_usage, parsed.client_wants_continuous_usage) == (True, True)
    assert sent(parsed).fields["stream_include_usage"] == "1"


def test_rules_hold_for_forms_too():
    read = sent(call(part(b"priority", "-5"), part(b"vllm_xargs", '{"tenant": "x", "a": 1}'), part(b"language", "en")))
    assert read.fields == {"language": "en", "vllm_xargs": '{"a":1}'}
    assert FILE in read.body


WRONG = {
    "empty": b"",
    "no end": form(part(b"a", "1"), end=b""),
    "no beginning": b"preamble\r\n" + PLAIN,
    "more behind its end": PLAIN + part(b"model", "other"),
    "no name": form(b"--boundary42\r\nContent-Type: text/plain\r\n\r\nx\r\n"),
    "two dispositions": form(
        b'--boundary42\r\nContent-Disposition: form-data; name="a"\r\n'
        b'Content-Disposition: form-data; name="b"\r\n\r\nx\r\n'
    ),
    "two names": form(b'--boundary42\r\nContent-Disposition: form-data; name="a"; filename="f"; name="b"\r\n\r\nx\r\n'),
    "an encoded name": form(b"--boundary42\r\nContent-Disposition: form-data; name*=utf-8''model\r\n\r\nx\r\n"),
    "a name beside an encoded one": form(
        b"--boundary42\r\nContent-Disposition: form-data; name=\"a\"; filename*=utf-8''f; name*=utf-8''b\r\n\r\nx\r\n"
    ),
    "an escaped name": form(b'--boundary42\r\nContent-Disposition: form-data; name="a\\"b"\r\n\r\nx\r\n'),
    "a head without end": form(b'--boundary42\r\nContent-Disposition: form-data; name="a"\r\nx\r\n'),
    "a head too long": form(part(b"a", "x", head=b"X-Long: " + b"a" * 5000 + b"\r\n")),
    "something behind a delimiter": PLAIN.replace(b"--boundary42\r\n", b"--boundary42 \r\n", 1),
    "a field too long": form(part(b"prompt", "x" * (FIELD_BYTES_MAX + 1))),
    "too many parts": form(*[part(b"a", "1")] * (PARTS_MAX + 1)),
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_a_form_that_could_be_read_in_two_ways_is_refused(body):
    with pytest.raises(BadRequest) as caught:
        read_form(TYPE, body)
    assert caught.value.problem.code == "invalid_form"


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        'multipart/form-data; boundary="a',
        "multipart/form-data; boundary=a; boundary=b",
        f"multipart/form-data; boundary={'a' * 71}",
        "multipart/mixed; boundary=a",
    ],
)
def test_a_type_without_one_plain_boundary_is_refused(content_type):
    with pytest.raises(BadRequest):
        read_form(content_type, PLAIN)


@given(
    st.lists(st.sampled_from([b"--boundary42", b"--", b"\r\n", b"a", part(b"n", "2"), FILE[:80], b"\0"]), max_size=12)
)
def test_any_bytes_are_a_form_or_a_bad_request(pieces):
    body = b"".join(pieces)
    with contextlib.suppress(BadRequest):
        read = read_form(TYPE, body)
        assert read_form(TYPE, read.changed({"x": "1"})).fields == {**read.fields, "x": "1"}
