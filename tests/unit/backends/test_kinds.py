"""What kind of server says this of itself, and what size it says it has."""

import pytest

from backends.kinds import BACKEND_KINDS, Sizes, UsageDetail, kind_by_metrics, kind_by_owner


@pytest.mark.parametrize(
    ("owners", "kind"),
    [
        (["vllm"], "vllm"),
        (["somebody", "vllm"], "vllm"),
        (["sglang"], "sglang"),
        (["llamacpp"], "llama.cpp"),
        (["openai"], None),
        (["avllm"], None),
        ([], None),
        ([""], None),
    ],
)
def test_a_kind_is_known_by_what_it_says_of_its_models(owners, kind):
    found = kind_by_owner(owners)
    assert (found and found.name) == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("# HELP\nvllm:num_requests_running 1\n", "vllm"),
        ("# HELP\nsglang:num_running_reqs 1\n", "sglang"),
        ("# HELP\nllamacpp:requests_processing 1\n", "llama.cpp"),
        ("# HELP\ntgi_queue_size 1\n", "tgi"),
        ("# HELP vllm:x\npython_info 1\n", None),
        ("", None),
    ],
)
def test_a_kind_is_known_by_the_names_of_its_metrics(text, kind):
    found = kind_by_metrics(text)
    assert (found and found.name) == kind


@pytest.mark.parametrize(
    ("kind", "said", "sizes"),
    [
        ("llama.cpp", {"total_slots": 4, "default_generation_settings": {"n_ctx": 512}}, Sizes(4, 2048, 512)),
        ("llama.cpp", {"total_slots": 0, "default_generation_settings": {"n_ctx": -1}}, Sizes(None, None, None)),
        ("llama.cpp", {"version": "1"}, None),
        ("tgi", {"max_concurrent_requests": 9, "max_total_tokens": 64}, Sizes(None, None, 64)),
        ("tgi", {"model_id": "x"}, None),
        ("sglang", {"max_total_num_tokens": 99, "context_length": 64}, Sizes(None, 99, 64)),
        (
            "sglang",
            {"max_total_num_tokens": 99, "internal_states": [{"effective_max_running_requests_per_dp": 7}]},
            Sizes(7, 99, None),
        ),
        ("sglang", {"max_running_requests": True, "max_total_num_tokens": "9"}, Sizes(None, None, None)),
        ("sglang", {}, None),
        ("vllm", {"total_slots": 4}, None),
    ],
)
def test_a_size_is_read_where_the_kind_says_it_and_nowhere_else(kind, said, sizes):
    assert BACKEND_KINDS[kind].sizes(said) == sizes


def test_no_server_is_asked_for_more_than_it_is_known_to_take():
    asked = {name: kind.usage for name, kind in BACKEND_KINDS.items()}
    assert {name for name, usage in asked.items() if usage is UsageDetail.ALWAYS} == {"vllm", "sglang"}
    assert asked["openai"] is UsageDetail.AT_END
    assert asked["openai-basic"] is UsageDetail.NOTHING
