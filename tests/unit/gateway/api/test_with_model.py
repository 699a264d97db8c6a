"""Another model's name in a request's body: it stands where the client's was, and every other byte is the client's."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.bodies import FormBody, read_json
from gateway.api.multipart import read_form
from tests.examples import examples

TARGET = 'org/"big" \\ µ'
TEXTS = st.one_of(
    st.sampled_from(['"model"', '\\"model\\": \\"', "model", "\\", '"', '{"model":"x"}', "\\u006dodel", '"\\u006d":']),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(-5, 5), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.one_of(TEXTS, st.just("model")), inner)),
    max_leaves=8,
)
MARK = "\0mark\0"


@given(
    before=st.dictionaries(TEXTS, VALUES, max_size=4),
    name=TEXTS,
    after=st.dictionaries(TEXTS, VALUES, max_size=4),
    ascii_=st.booleans(),
    indent=st.sampled_from([None, 1]),
)
@settings(max_examples=examples(150), deadline=None)
def test_a_json_body_has_the_targets_name_and_the_clients_bytes(before, name, after, ascii_, indent):
    before.pop("model", None)
    body = {**before, "model": MARK, **{key: value for key, value in after.items() if key != "model"}}
    text, mark = json.dumps(body, ensure_ascii=ascii_, indent=indent), json.dumps(MARK, ensure_ascii=ascii_)
    read = read_json(text.replace(mark, json.dumps(name, ensure_ascii=ascii_)).encode()).with_model(TARGET)
    assert bytes(read.raw) == text.replace(mark, json.dumps(TARGET, ensure_ascii=False)).encode()
    assert read.values == {**body, "model": TARGET}
    again = read.with_model("b").with_model(TARGET)
    assert bytes(again.raw) == bytes(read.raw)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a","n":1.0,"model":"chat"}',  # the last one counts, as in vLLM
        b'{"model":{"model":"a"},"n":1.0,"model":"chat"}',
        b'{"n":1.0,"\\u006dodel":"chat"}',
        b'{"model":"a","mod\\u0065l":"chat","n":1.0}',
        b'{"n":1.0,"model":"\\u0063hat","model ":1}',
    ],
)
def test_however_the_name_is_written_every_parser_finds_the_target(body):
    read = read_json(body)
    assert read.values["model"] == "chat"
    assert json.loads(read.with_model("big").raw) == {**json.loads(body), "model": "big"}


def form(*parts, boundary="B"):
    body = b""
    for head, value in parts:
        disposition = f"Content-Disposition: form-data; name={head}\r\n\r\n".encode()
        body += b"--" + boundary.encode() + b"\r\n" + disposition + value + b"\r\n"
    return body + b"--" + boundary.encode() + b"--\r\n"


@given(
    audio=st.binary(max_size=60).filter(lambda data: b"--B" not in data),
    before=st.booleans(),
    name=st.text("abc", min_size=1),
    target=st.text("xyz/", min_size=1, max_size=40),
)
@settings(max_examples=examples(60), deadline=None)
def test_a_form_has_the_targets_name_and_the_clients_bytes(audio, before, name, target):
    file, model = ('"file"; filename="a.wav"', audio), ('"model"', name.encode())
    others = [('"language"', b"en")]
    parts = [file, model, *others] if before else [model, *others, file]
    changed = [(head, target.encode() if head == '"model"' else value) for head, value in parts]
    read = FormBody(read_form("multipart/form-data; boundary=B", form(*parts))).with_model(target)
    assert read.form.body == form(*changed)
    assert read.form == read_form("multipart/form-data; boundary=B", form(*changed))
    assert read.upstream({}, None).asking(usage=False, continuous=False) == form(*changed)


def test_a_file_of_that_name_is_no_field():
    parts = [('"model"', b"chat"), ('"model"; filename="m"', b"data")]
    read = FormBody(read_form("multipart/form-data; boundary=B", form(*parts))).with_model("big")
    assert read.form.body == form(('"model"', b"big"), parts[1])
