"""A step time as operators write it, and as it is stored."""

import pytest

from gateway.config import Config, ConfigError, load_config
from gateway.config.step_time import read_step_time, write_step_time
from policies.step_time import StepTime, StepTimeModel

MEASURED = StepTime(StepTimeModel(0.95e-3, 9.1e-6, 0.05e-6, 35e-6), error_ratio=0.064, is_sure=True)


def backend(**given):
    (spec,) = Config(backends=[{"url": "http://a:1", **given}]).backend_specs()
    return spec


def test_named_coefficients_are_believed_in_seconds():
    spec = backend(step_time={"base_ms": 10, "token_us": 100, "context_token_ns": 50}, step_tokens_max=2048)
    assert spec.step_time == StepTime(StepTimeModel(0.01, 1e-4, 5e-8, 0.0), error_ratio=0.2, is_sure=True)
    assert spec.step_tokens_max == 2048
    assert backend().step_time is None


def test_what_is_stored_is_read_as_it_was(tmp_path):
    write_step_time(tmp_path / "a.yaml", MEASURED)
    assert (tmp_path / "a.yaml").read_text() == (
        "base_ms: 0.95\ntoken_us: 9.1\ncontext_token_ns: 50\nrequest_us: 35\nerror_ratio: 0.064\n"
    )
    read = backend(step_time_file=tmp_path / "a.yaml").step_time
    assert read.model.base_s == pytest.approx(MEASURED.model.base_s)
    assert read.model.context_token_s == pytest.approx(MEASURED.model.context_token_s)
    assert (read.error_ratio, read.is_sure) == (0.064, True)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{base_ms: -1, token_us: 1}", "must be at least 0"),
        ("{base_ms: .nan, token_us: 1}", "finite number"),
        ("{base_ms: 1, token_us: .inf}", "finite number"),
        ("{base_ms: 0, token_us: 0}", "not all coefficients can be zero"),
        ("{base_ms: 1}", "is missing"),
        ("{base_ms: 1, token_us: true}", "not true or false"),
        ("{base_ms: 1, token_us: 1, token_ms: 1}", "not permitted"),
    ],
)
def test_coefficients_that_cannot_be_are_refused_where_they_are_written_and_in_a_file(tmp_path, written, said):
    config, stored = tmp_path / "fairlead.yaml", tmp_path / "a.yaml"
    config.write_text(f'backends: [{{url: "http://a:1", step_time: {written}}}]\n')
    with pytest.raises(ConfigError):
        load_config(config)
    stored.write_text(written)
    with pytest.raises(ValueError, match=said):
        read_step_time(stored)


@pytest.mark.parametrize("content", ["", "[]", "a: [", "\udcff", "1"])
def test_a_file_that_is_no_step_time_is_refused_with_its_name(tmp_path, content):
    stored = tmp_path / "a.yaml"
    stored.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"a\.yaml"):
        read_step_time(stored)


def test_a_file_that_is_missing_is_said_at_the_line_that_names_it(tmp_path):
    config = tmp_path / "fairlead.yaml"
    config.write_text('backends:\n  - url: "http://a:1"\n    step_time_file: nowhere.yaml\n')
    with pytest.raises(ConfigError, match=r"3: backends\[0\].step_time_file: the file \S+/nowhere.yaml cannot be read"):
        load_config(config)


def test_a_step_time_is_given_once():
    with pytest.raises(ValueError, match="only one of step_time and step_time_file"):
        backend(step_time={"base_ms": 1, "token_us": 1}, step_time_file="a.yaml")
