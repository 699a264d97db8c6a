"""Facts from /metrics: a real scrape of vLLM 0.32 on a CPU, and the same with what other servers may do to it."""

import string
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from backends.metrics import LINE_CHARS_MAX, SCRAPE_BYTES_MAX, EngineMetrics, EngineSteps, parse_metrics

SCRAPE = (Path(__file__).parent / "data" / "vllm_0.32_metrics.txt").read_text()  # three requests running

ONE_ENGINE = """
vllm:num_requests_running{{engine="{engine}",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="{engine}",model_name="m"}} {waiting}
vllm:kv_cache_usage_perc{{engine="{engine}",model_name="m"}} {used}
vllm:num_preemptions_total{{engine="{engine}",model_name="m"}} {preemptions}
vllm:cache_config_info{{engine="{engine}",block_size="8",enable_prefix_caching="{caching}",num_gpu_blocks="{blocks}"}} 1
"""


def one_engine(engine, *, running=0, waiting=0, used=0.0, preemptions=0, blocks=100, caching=True):
    return ONE_ENGINE.format(**locals())


def test_a_real_scrape_is_read_whole():
    assert parse_metrics(SCRAPE) == EngineMetrics(
        engines=1,
        requests_running=3,
        requests_waiting=0,
        requests_waiting_for_capacity=0,
        requests_finished_total=3,
        preemptions_total=0,
        kv_used_ratio=0.014662756598240456,
        kv_tokens_max=131072,
        kv_block_tokens=128,
        prefix_caching=True,
        steps_total=331,
        step_tokens_total=2770,
        prompt_tokens_total=2863,
        generation_tokens_total=931,
        prefix_hit_tokens_total=1024,
        engine_steps=(
            EngineSteps(
                engine="0",
                steps_total=331,
                step_tokens_total=2770,
                generation_tokens_total=931,
                requests_running=3,
                kv_used_tokens=0.014662756598240456 * 131072,
                kv_block_tokens=128,
                requests_finished_total=3,
            ),
        ),
    )


def test_engines_behind_one_url_add_up_and_their_kv_ratio_is_weighted_by_capacity():
    metrics = parse_metrics(
        one_engine(0, running=3, waiting=1, used=0.5, preemptions=2, blocks=300)
        + one_engine(1, running=4, waiting=0, used=0.1, preemptions=5, blocks=100)
    )
    assert metrics.engines == 2
    assert metrics.requests_running == 7
    assert metrics.requests_waiting == 1
    assert metrics.preemptions_total == 7
    assert metrics.kv_tokens_max == 400 * 8
    assert metrics.kv_used_ratio == (0.5 * 300 + 0.1 * 100) / 400


def test_engines_of_unknown_size_weigh_the_same():
    text = 'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n'
    assert parse_metrics(text).kv_used_ratio == 0.4


def test_prefixes_are_shared_only_if_every_engine_shares_them():
    assert parse_metrics(one_engine(0) + one_engine(1)).prefix_caching is True
    assert parse_metrics(one_engine(0) + one_engine(1, caching=False)).prefix_caching is False
    assert parse_metrics("").prefix_caching is None


def test_the_name_of_older_servers_for_the_kv_ratio_is_known():
    assert parse_metrics('vllm:gpu_cache_usage_perc{model_name="m"} 0.25\n').kv_used_ratio == 0.25


def test_a_server_without_engine_labels_is_one_engine():
    metrics = parse_metrics('vllm:num_requests_running{model_name="m"} 2.0\nvllm:num_requests_waiting 1\n')
    assert (metrics.engines, metrics.requests_running, metrics.requests_waiting) == (1, 2, 1)


def test_what_only_counts_is_no_engine():
    text = 'vllm:request_success_total{finished_reason="stop"} 4\nvllm:num_requests_running{engine="0"} 2\n'
    metrics = parse_metrics(text)
    assert (metrics.engines, metrics.requests_finished_total) == (1, 4)


def test_requests_that_wait_for_something_else_than_room_are_told_apart():
    text = (
        'vllm:num_requests_waiting{engine="0"} 5.0\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 2.0\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 3.0\n'
    )
    metrics = parse_metrics(text)
    assert (metrics.requests_waiting, metrics.requests_waiting_for_capacity) == (5, 2)


def test_finished_requests_add_up_over_their_reasons():
    text = "".join(f'vllm:request_success_total{{engine="0",finished_reason="{r}"}} 2.0\n' for r in ("stop", "length"))
    assert parse_metrics(text).requests_finished_total == 4


def test_label_values_may_hold_commas_braces_and_escapes():
    name = r"a,b=\"c\"}{ \\ \n"
    text = f'vllm:num_requests_running{{model_name="{name}",engine="0"}} 3.0 1795180668\n'
    assert parse_metrics(text).requests_running == 3


def test_an_engine_name_with_escapes_is_one_engine_whatever_the_order_of_labels():
    text = 'vllm:num_requests_running{engine="a\\"b",x="1"} 1\nvllm:num_requests_waiting{x="1",engine="a\\"b"} 1\n'
    assert parse_metrics(text).engines == 1


def test_the_pool_size_falls_back_on_blocks_times_block_size_and_none_is_unknown():
    labels = (
        'engine="0",block_size="{}",effective_attention_block_size="{}",num_gpu_blocks="{}",kv_cache_size_tokens="{}"'
    )

    def size(*values):
        metrics = parse_metrics(f"vllm:cache_config_info{{{labels.format(*values)}}} 1.0\n")
        return metrics.kv_tokens_max, metrics.kv_block_tokens

    assert size(16, 32, 100, "None") == (3200, 32)
    assert size(16, "None", 100, "None") == (1600, 16)
    assert size(16, 32, 100, 3000) == (3000, 32)
    assert size("None", "None", "None", "None") == (None, None)
    assert size(16, 16, 0, 0) == (None, 16)


def test_values_that_are_no_finite_numbers_are_left_out():
    for value in ("NaN", "+Inf", "-Inf", "-1", "x", "", "1e400", "0x10"):
        metrics = parse_metrics(
            f'vllm:num_requests_running{{engine="0"}} {value}\nvllm:num_requests_waiting{{engine="0"}} 2\n'
        )
        assert (metrics.requests_running, metrics.requests_waiting) == (None, 2), value


def test_one_broken_line_costs_only_itself():
    broken = [
        'vllm:num_requests_running{engine="0" 3',
        'vllm:num_requests_running{engine="0',
        "vllm:num_requests_running",
        "vllm:num_requests_running{",
        'vllm:num_requests_running{engine="0"}',
        'vllm:num_requests_running{x="' + "y" * LINE_CHARS_MAX + '",engine="0"} 3',
        "\x00\x01",
    ]
    for line in broken:
        metrics = parse_metrics(f'{line}\nvllm:num_requests_waiting{{engine="0"}} 2\n')
        assert (metrics.requests_running, metrics.requests_waiting) == (None, 2), line


def test_other_texts_give_no_facts():
    for text in ("", "<html>not found</html>", '{"error": 1}', "# HELP x\n", "up 1\n"):
        assert parse_metrics(text) == EngineMetrics()


def test_what_is_beyond_the_size_limit_is_not_read():
    assert parse_metrics("#" * SCRAPE_BYTES_MAX + '\nvllm:num_requests_running{engine="0"} 3\n') == EngineMetrics()


def test_the_ratio_never_exceeds_one():
    assert parse_metrics('vllm:kv_cache_usage_perc{engine="0"} 1.5\n').kv_used_ratio == 1.0


NOISE = st.text(alphabet=st.sampled_from('{}",=\\\n .+-eE#' + string.digits + "aNI\x00\u2028é"), max_size=60)
NAMES = st.sampled_from([line.split("{")[0] for line in SCRAPE.splitlines() if line.startswith("vllm:")])


@given(st.lists(st.tuples(NAMES, NOISE)))
def test_no_text_raises(parts):
    parse_metrics("\n".join(name + noise for name, noise in parts))


@given(st.integers(0, len(SCRAPE) - 1), NOISE)
def test_a_damaged_scrape_does_not_raise(at, noise):
    parse_metrics(SCRAPE[:at] + noise + SCRAPE[at + len(noise) :])


def test_a_load_has_what_was_read():
    metrics = parse_metrics(SCRAPE)
    load = metrics.load("b", available=False)
    assert (load.backend_id, load.available, load.kv_tokens_max, load.requests_running_max) == (
        "b",
        False,
        131072,
        None,
    )
    assert (load.requests_running, load.kv_used_ratio) == (metrics.requests_running, metrics.kv_used_ratio)


def test_a_server_that_says_nothing_is_one_engine_without_measurements():
    load = EngineMetrics().load("b", available=True)
    assert (load.engines, load.kv_tokens_max, load.kv_block_tokens) == (1, None, 1)
    assert load.requests_running is load.requests_waiting is load.kv_used_ratio is load.preemptions_total is None


def test_sizes_outlive_a_scrape_and_measurements_do_not():
    sizes = parse_metrics(SCRAPE).sizes()
    assert (sizes.engines, sizes.kv_tokens_max, sizes.kv_block_tokens, sizes.prefix_caching) == (1, 131072, 128, True)
    assert sizes.requests_running is sizes.kv_used_ratio is sizes.preemptions_total is None


def test_sglangs_names_are_read_and_its_parts_are_not_counted_twice():
    text = """sglang:num_running_reqs{tp_rank="0",model_name="m"} 3.0
sglang:num_running_reqs{tp_rank="1",model_name="m"} 3.0
sglang:num_queue_reqs{tp_rank="0"} 2.0
sglang:token_usage{tp_rank="0"} 0.25
sglang:max_total_num_tokens{tp_rank="0"} 1000
sglang:num_requests_total{model_name="m"} 40"""
    metrics = parse_metrics(text)
    assert (metrics.engines, metrics.requests_running, metrics.requests_waiting) == (1, 3, 2)
    assert (metrics.kv_used_ratio, metrics.kv_tokens_max, metrics.requests_finished_total) == (0.25, 1000, 40)


def test_sglangs_data_parallel_ranks_are_engines():
    text = "\n".join(f'sglang:num_running_reqs{{tp_rank="{n}",dp_rank="{n}"}} {n + 1}' for n in range(3))
    metrics = parse_metrics(text)
    assert (metrics.engines, metrics.requests_running) == (3, 6)


def test_llama_cpps_and_tgis_names_are_read():
    metrics = parse_metrics("llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n")
    assert (metrics.engines, metrics.requests_running, metrics.requests_waiting) == (1, 2, 1)
    metrics = parse_metrics("tgi_batch_current_size 4\ntgi_queue_size 7\ntgi_request_success 9\n")
    assert (metrics.requests_running, metrics.requests_waiting, metrics.requests_finished_total) == (4, 7, 9)
