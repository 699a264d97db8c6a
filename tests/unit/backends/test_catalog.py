"""Models and pools, from what backends answer to /v1/models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.catalog import CONTEXT_TOKENS_MAX, MODEL_ID_CHARS_MAX, MODELS_MAX, Catalog, read_models


def entry(model, parent=None, **more):
    return {"id": model, "object": "model", "owned_by": "vllm", "root": f"/models/{model}", "parent": parent} | more


def cards(*entries):
    return read_models({"object": "list", "data": list(entries)})


def catalog(*backends, pools=None):
    """A catalog of backends b0, b1, ... that serve these cards."""
    ids = [f"b{i}" for i in range(len(backends))]
    made = Catalog(ids, pools=pools or {})
    for backend_id, served in zip(ids, backends, strict=True):
        made.update(backend_id, served)
    return made


def test_an_entry_is_read_as_vllm_writes_it():
    (card,) = cards(entry("tiny", max_model_len=4096))
    assert (card.id, card.root, card.parent, card.max_model_len) == ("tiny", "/models/tiny", None, 4096)
    assert card.entry["owned_by"] == "vllm"


def test_entries_that_make_no_sense_are_left_out():
    odd = [
        None,
        "tiny",
        {},
        {"id": 3},
        {"id": ""},
        {"id": "x" * (MODEL_ID_CHARS_MAX + 1)},
        entry("ok", max_model_len="4k"),
    ]
    (card,) = cards(*odd)
    assert (card.id, card.max_model_len) == ("ok", None)


def test_a_body_that_is_no_list_of_models_is_an_error():
    for body in (None, [], "x", {}, {"data": None}, {"data": {"id": "x"}}):
        with pytest.raises(ValueError, match="data"):
            read_models(body)


def test_the_number_of_models_is_bounded():
    assert len(cards(*[entry(f"m{i}") for i in range(MODELS_MAX + 5)])) == MODELS_MAX


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["id", "root", "parent", "max_model_len"]), inner),
)


@given(st.lists(JSON))
def test_no_entry_raises(entries):
    catalog(read_models({"data": entries}))


def test_backends_that_serve_one_base_model_are_one_pool():
    both = catalog(cards(entry("llama")), cards(entry("llama")), cards(entry("qwen")))
    assert [both.pool_of_backend(b) for b in ("b0", "b1", "b2")] == ["llama", "llama", "qwen"]


def test_adapters_belong_to_the_pool_of_their_base():
    one = catalog(cards(entry("llama"), entry("sql", parent="llama")), cards(entry("llama")))
    assert one.pool_of_model("sql") == "llama"
    assert one.pool_of_backend("b1") == "llama"
    assert one.serves("b0", "sql")
    assert not one.serves("b1", "sql")


def test_aliases_of_one_base_join_pools():
    one = catalog(cards(entry("llama"), entry("gpt-4")), cards(entry("gpt-4")))
    assert one.pool_of_backend("b1") == "llama"
    assert one.pool_of_model("gpt-4") == one.pool_of_model("llama") == "llama"


def test_a_pool_keeps_its_name_when_a_backend_with_another_first_alias_comes_later():
    made = Catalog(["b0", "b1"], pools={})
    made.update("b1", cards(entry("gpt-4")))
    assert made.pool_of_backend("b1") == "gpt-4"
    made.update("b0", cards(entry("llama"), entry("gpt-4")))
    assert made.pool_of_backend("b0") == made.pool_of_backend("b1") == "gpt-4"


def test_configured_pools_go_before_derived_ones():
    made = catalog(cards(entry("llama")), cards(entry("qwen")), cards(entry("llama")), pools={"b0": "big", "b1": "big"})
    assert [made.pool_of_backend(b) for b in ("b0", "b1", "b2")] == ["big", "big", "llama"]
    assert made.pool_of_model("qwen") == "big"
    assert made.pool_of_model("llama") == "big", "the backend that is listed first"


def test_a_backend_with_a_configured_pool_is_in_it_before_it_answers():
    made = Catalog(["b0", "b1"], pools={"b0": "big"})
    assert (made.pool_of_backend("b0"), made.pool_of_backend("b1")) == ("big", None)
    assert made.pool_of_model("llama") is None


def test_models_are_merged_by_id_in_the_order_of_backends():
    merged = catalog(
        cards(entry("llama", created=1), entry("sql", parent="llama")), cards(entry("qwen"), entry("llama", created=2))
    )
    assert [card.id for card in merged.models()] == ["llama", "sql", "qwen"]
    assert merged.model("llama").entry["created"] == 1
    assert merged.model("gone") is None


def test_a_backend_that_serves_another_model_than_before_moves():
    made = catalog(cards(entry("llama")), cards(entry("llama")))
    assert made.update("b1", cards(entry("qwen")))
    assert made.pool_of_backend("b1") == "qwen"
    assert not made.update("b1", cards(entry("qwen", created=1795180668))), "vLLM's `created` is no news"
    made.update("b0", cards(entry("qwen")))
    assert made.pool_of_model("llama") is None


def test_a_list_of_adapters_alone_names_its_base():
    assert catalog(cards(entry("sql", parent="llama"))).pool_of_backend("b0") == "llama"


def test_the_longest_context_of_a_model_is_that_of_any_backend_and_unknown_where_one_does_not_tell():
    short, long, untold = (cards(entry("tiny", max_model_len=length)) for length in (4096, 8192, None))
    assert catalog(short, long).context_tokens_max("tiny") == 8192
    assert catalog(short, untold).context_tokens_max("tiny") == CONTEXT_TOKENS_MAX


def test_a_context_longer_than_any_is_not_believed():
    (card,) = cards(entry("tiny", max_model_len=10**18))
    assert card.max_model_len == CONTEXT_TOKENS_MAX
