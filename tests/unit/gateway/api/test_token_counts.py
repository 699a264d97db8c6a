"""Prompt tokens before a backend has counted them."""

import base64
import socket

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.token_counts import (
    INLINE_BYTES_MAX,
    THREAD_BYTES_MAX,
    TOKENS_PER_BYTE_MAX,
    TOKENS_PER_BYTE_MIN,
    ExactPromptTokens,
    LearntPromptTokens,
    make_encoding,
    read_ranks,
)

PATTERN = r"\w+|\W+"


def learn(tokens: LearntPromptTokens, *reports: tuple[int, int], tenant: str = "t") -> None:
    for prompt_bytes, prompt_tokens in reports:
        tokens.observed(tenant, "m", prompt_bytes=prompt_bytes, prompt_tokens=prompt_tokens)


def test_an_unknown_tenant_is_estimated_pessimistically_at_a_token_in_three_bytes():
    tokens = LearntPromptTokens()
    assert (tokens.estimate("t", "m", 3000), tokens.estimate("t", "m", 0)) == (1000, 1)


def test_a_report_moves_the_average_by_three_tenths_at_first():
    tokens = LearntPromptTokens()
    learn(tokens, (3000, 600))  # 1/5 token a byte
    assert tokens.estimate("t", "m", 30_000) == 8800  # 1/3 + 0.3 (1/5 - 1/3) = 0.29333
    learn(tokens, (3000, 600))
    assert tokens.estimate("t", "m", 30_000) == 7960


def test_after_ten_reports_it_moves_by_one_tenth():
    tokens = LearntPromptTokens()
    learn(tokens, *[(3000, 1000)] * 10, (3000, 0), (3000, 600))  # a report of nothing says nothing
    assert tokens.estimate("t", "m", 30_000) == 9600  # 1/3 + 0.1 (0.2 - 1/3) = 0.32


def test_short_prompts_say_little_because_their_tokens_are_the_templates():
    tokens = LearntPromptTokens()
    learn(tokens, *[(4000, 1000)] * 20)
    learn(tokens, *[(8, 30)] * 20)
    assert 25_000 <= tokens.estimate("t", "m", 100_000) < 37_000


def test_one_report_cannot_make_estimates_absurd():
    tokens = LearntPromptTokens()
    learn(tokens, *[(1000, 10**9)] * 100)
    assert tokens.estimate("t", "m", 1000) <= 1000 * TOKENS_PER_BYTE_MAX


def test_no_client_teaches_an_estimate_at_which_a_prompt_is_nearly_free():
    tokens = LearntPromptTokens()
    learn(tokens, *[(100_000, 10)] * 100)  # white space
    assert tokens.estimate("t", "m", 100_000) >= 100_000 * TOKENS_PER_BYTE_MIN


def test_tenants_and_models_are_learnt_apart():
    tokens = LearntPromptTokens()
    learn(tokens, *[(3000, 600)] * 30, tenant="a")
    assert tokens.estimate("b", "m", 3000) == tokens.estimate("a", "other", 3000) == 1000
    assert tokens.estimate("a", "m", 3000) == 602  # 600 + 400 * 0.7^10 * 0.9^20, rounded up


def test_only_the_pairs_seen_last_are_remembered():
    tokens = LearntPromptTokens(ratios_max=2)
    for tenant in ("a", "b", "a", "c"):
        learn(tokens, (3000, 300), tenant=tenant)
    estimates = [tokens.estimate(tenant, "m", 3000) for tenant in "abc"]
    assert estimates[1] == 1000
    assert estimates[0] < estimates[2] < 1000


@given(st.lists(st.tuples(st.integers(-1, 10**7), st.integers(-1, 10**7)), max_size=20), st.integers(0, 10**7))
def test_an_estimate_is_at_least_one_token_and_bounded_by_the_bytes(reports, prompt_bytes):
    tokens = LearntPromptTokens()
    learn(tokens, *reports)
    assert 1 <= tokens.estimate("t", "m", prompt_bytes) <= TOKENS_PER_BYTE_MAX * prompt_bytes + 1


@pytest.fixture(scope="module")
def ranks_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks") / "small.tiktoken"
    merges = [bytes([byte]) for byte in range(256)] + [b"he", b"ll", b"hell", b"hello"]
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(merges)))
    return path


@pytest.fixture(scope="module")
def exact(ranks_file):
    return ExactPromptTokens(make_encoding(read_ranks(ranks_file), encoding="cl100k_base", pattern=PATTERN))


async def test_an_exact_count_is_that_of_the_local_ranks(exact):
    assert await exact.count("hello hell") == 3
    assert await exact.count("") == 0


async def test_long_texts_are_counted_in_a_thread_and_the_longest_not_at_all(exact):
    long = "hello " * (INLINE_BYTES_MAX // 6 + 1)
    assert await exact.count(long) == 2 * (INLINE_BYTES_MAX // 6 + 1)
    assert await exact.count("x" * (THREAD_BYTES_MAX + 1)) is None


async def test_special_tokens_in_a_prompt_are_text(exact):
    assert await exact.count("<|endoftext|>") == len("<|endoftext|>")


@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base", "p50k_base", "r50k_base"])
def test_a_named_encoding_takes_only_its_own_ranks_and_downloads_nothing(ranks_file, encoding, monkeypatch):
    def no_network(*_args, **_kwargs):
        raise AssertionError("something was about to be downloaded")

    monkeypatch.setattr(socket, "create_connection", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    ranks = read_ranks(ranks_file)
    with pytest.raises(ValueError, match=ranks.sha256):
        make_encoding(ranks, encoding=encoding, pattern=None)


def test_a_named_encoding_is_tiktokens_own_with_the_local_ranks(ranks_file, monkeypatch):
    ranks = read_ranks(ranks_file)

    class AnyHash(str):
        __slots__ = ()

        def __ne__(self, _other):
            return False

        __hash__ = str.__hash__

    local = make_encoding(type(ranks)(ranks.merges, AnyHash(ranks.sha256)), encoding="o200k_base", pattern=None)
    assert isinstance(local, tiktoken.Encoding)
    assert local.name == "o200k_base"
    assert local.encode_ordinary("hello") == [259]


@pytest.mark.parametrize("data", [b"", b"x", b"aGk= x\n", b"!! 1\n", b"aGk= 1 2\n", b"aGk= 1\n", b"\xff 1\n"])
def test_a_file_that_is_no_ranks_file_is_refused(tmp_path, data):
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(ValueError, match="bad"):
        read_ranks(tmp_path / "bad")


def test_a_missing_ranks_file_or_a_bad_pattern_is_a_value_error(tmp_path, ranks_file):
    with pytest.raises(ValueError, match="cannot be read"):
        read_ranks(tmp_path / "none")
    with pytest.raises(ValueError, match="parenthesis"):
        make_encoding(read_ranks(ranks_file), encoding="cl100k_base", pattern="((")
