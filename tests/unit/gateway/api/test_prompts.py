"""The canonical text of a prompt, and the hashes of how it begins."""

import tracemalloc

import pytest

from gateway.api import prompts
from gateway.api.errors import BadRequest
from gateway.api.prompts import (
    MEDIA_PART_BYTES,
    PREFIX_BLOCK_BYTES,
    PREFIX_BLOCKS_MAX,
    audio_prompt,
    batch_prompt,
    chat_prompt,
    completion_prompt,
    messages_prompt,
    prefix_hashes,
    responses_prompt,
)


def chat_text(*messages, **fields):
    return chat_prompt({"messages": list(messages), **fields}).text


def hashes(text, **fields):
    call = {"model": "m", "prompt": text, **fields}
    return prefix_hashes(completion_prompt(call), call)


def test_a_chat_is_its_tools_then_each_role_and_content():
    text = chat_text(
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]},
        tools=[{"type": "function"}],
    )
    assert text == b'[{"type":"function"}]\nsystem\nbe kind\nuser\nhi\nthere'


def test_what_an_assistant_message_says_beside_its_content_is_prompt_and_nulls_are_not():
    text = chat_text({"role": "assistant", "content": None, "refusal": None, "tool_calls": [{"id": "1"}], "name": "bo"})
    assert text == b'assistant\nbo\n[{"id":"1"}]'


def test_an_image_counts_as_much_as_any_other_and_is_known_by_its_content():
    def picture(data):
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": data}}]}

    small, large = chat_text(picture("a")), chat_text(picture("a" * 10**6))
    assert len(small) == len(large) == len(b"user\n") + MEDIA_PART_BYTES
    assert small != large
    assert small == chat_text(picture("a"))


def test_equal_beginnings_have_equal_hashes_up_to_the_block_where_they_differ():
    common = "x" * (3 * PREFIX_BLOCK_BYTES)
    one, other = hashes(common + "a" * PREFIX_BLOCK_BYTES), hashes(common + "b" * PREFIX_BLOCK_BYTES)
    assert len(one) == len(other) == 4
    assert one[:3] == other[:3]
    assert one[3] != other[3]


def test_a_hash_stands_for_all_blocks_before_it():
    block = "x" * PREFIX_BLOCK_BYTES
    assert len(set(hashes(block * 5))) == 5


def test_a_part_of_a_block_has_no_hash():
    assert hashes("x" * (PREFIX_BLOCK_BYTES - 1)) == ()
    assert len(hashes("x" * (2 * PREFIX_BLOCK_BYTES - 1))) == 1


@pytest.mark.parametrize("fields", [{"model": "other"}, {"cache_salt": "s"}, {"chat_template": "t"}])
def test_what_separates_kv_blocks_separates_hashes(fields):
    text = "x" * PREFIX_BLOCK_BYTES
    assert hashes(text) != hashes(text, **fields)


def test_of_several_prompts_only_the_first_is_a_prefix():
    text = "x" * PREFIX_BLOCK_BYTES
    assert hashes([text, text]) == hashes(text)
    assert hashes(["short", text]) == ()


def test_hashes_are_bounded():
    assert len(hashes("x" * (PREFIX_BLOCK_BYTES * (PREFIX_BLOCKS_MAX + 5)))) == PREFIX_BLOCKS_MAX


def test_token_ids_have_hashes_too():
    ids = list(range(1000))
    assert len(hashes(ids)) == 3  # four bytes each
    assert hashes(ids)[:2] == hashes([*ids[:512], 7])[:2]


def test_text_never_shares_a_prefix_with_token_ids_of_the_same_bytes():
    assert hashes([0x78787878] * 512)[0] != hashes("x" * 2048)[0]


def test_a_later_turn_of_a_conversation_begins_with_the_blocks_of_the_earlier_one():
    asked = [{"role": "system", "content": "s" * 1500}, {"role": "user", "content": "u" * 3000}]
    answered = [*asked, {"role": "assistant", "content": "a" * 700}, {"role": "user", "content": "more"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    earlier, later = ({"model": "m", "messages": turns, "tools": tools} for turns in (asked, answered))
    before, after = (prefix_hashes(chat_prompt(call), call) for call in (earlier, later))
    assert len(before) == 4
    assert len(after) == 5
    assert after[:4] == before


def test_other_tools_before_equal_messages_share_nothing():
    messages = [{"role": "user", "content": "u" * 3000}]
    calls = [{"model": "m", "messages": messages, "tools": [{"type": "function", "name": name}]} for name in "ab"]
    one, other = (prefix_hashes(chat_prompt(call), call) for call in calls)
    assert not set(one) & set(other)


def test_embeddings_are_sized_like_media_and_share_nothing():
    prompt = completion_prompt({"prompt": "beside", "prompt_embeds": ["AAAA", "BBBB"]})
    assert (len(prompt.text), prompt.leading_bytes, prompt.prompts) == (6 + 2 * MEDIA_PART_BYTES, 0, 3)


# -- responses, messages, batches, sounds --------------------------------------------------------------------------


def test_a_response_is_its_tools_then_instructions_then_items():
    call = {
        "instructions": "be kind",
        "tools": [{"type": "function"}],
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "name": "f", "arguments": '{"a":1}'},
            {"type": "function_call_output", "output": "7"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        ],
    }
    text = responses_prompt(call).text
    assert text.startswith(b'[{"type":"function"}]\nbe kind\nuser\nhi\nf\n{"a":1}\n7\n')
    assert responses_prompt({"input": "hello"}).text == b"hello"


def test_a_message_is_its_tools_then_the_system_then_blocks():
    call = {
        "system": [{"type": "text", "text": "be kind"}],
        "tools": [{"name": "f"}],
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "name": "f"}],
            },
            {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "7"}]}]},
        ],
    }
    expected = b'[{"name":"f"}]\nbe kind\nuser\nhi\nassistant\nhm\n{"type":"tool_use","name":"f"}\nuser\n7'
    assert messages_prompt(call).text == expected


@pytest.mark.parametrize("kind", ["image", "input_image", "document", "input_file"])
def test_what_is_no_text_is_a_digest_of_one_size(kind):
    block = {"type": kind, "source": {"data": "A" * 50_000}}
    assert len(messages_prompt({"messages": [{"role": "user", "content": [block]}]}).text) == MEDIA_PART_BYTES + 5


@pytest.mark.parametrize(
    "odd", [7, None, {"role": 7}, {"content": {"a": 1}}, {"role": "user", "content": [None, 7, {}]}, "x"]
)
def test_what_an_item_should_be_is_the_backends_to_say(odd):
    assert responses_prompt({"input": [odd]}).prompts == 1
    assert messages_prompt({"messages": [odd]}).prompts == 1


@pytest.mark.parametrize(("read", "call", "param"), [
    (responses_prompt, {}, "input"),
    (responses_prompt, {"input": 7}, "input"),
    (messages_prompt, {"messages": "hi"}, "messages"),
    (batch_prompt, {"messages": []}, "messages"),
    (batch_prompt, {"messages": [{"role": "user", "content": "hi"}]}, "messages"),
])  # fmt: skip
def test_what_is_no_prompt_at_all_is_refused_by_name(read, call, param):
    with pytest.raises(BadRequest) as caught:
        read(call)
    assert caught.value.problem.param == param


def test_a_batch_is_its_conversations_and_the_first_one_leads():
    prompt = batch_prompt({"messages": [[{"role": "user", "content": "hello"}], [{"role": "user", "content": "you"}]]})
    assert (prompt.prompts, prompt.leading_bytes, prompt.text) == (2, 10, b"user\nhellouser\nyou")


def test_a_sound_is_as_long_a_prompt_as_it_is_large():
    prompt = audio_prompt({"prompt": "names", "file_bytes": 24_000})
    assert (prompt.text, prompt.repeated_bytes) == (b"names", 150)
    assert audio_prompt({}).repeated_bytes == 1


def test_the_size_and_the_beginning_of_a_long_text_are_found_without_a_copy_of_it():
    call = {"messages": [{"role": "user", "content": "word " * 1_600_000}]}
    tracemalloc.start()
    prompt = chat_prompt(call)
    assert prompt.text_bytes == 8_000_000 + len("user\n")
    assert len(prefix_hashes(prompt, call)) == PREFIX_BLOCKS_MAX
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize("text", ["a", "é", "中"])
@pytest.mark.parametrize("tools", [{}, {"tools": [{"type": "function"}]}])
def test_the_beginning_and_the_size_are_those_of_the_text_in_one_or_in_pieces(text, tools, monkeypatch):
    call = {"messages": [{"role": "user", "content": [{"type": "text", "text": text * 500}] * 3}], **tools}
    joined = messages_prompt(call)
    monkeypatch.setattr(prompts, "LONG_BYTES", 0)
    prompt = messages_prompt(call)
    assert len(joined.pieces) == 1 < len(prompt.pieces)
    assert prompt.text == joined.text
    assert prefix_hashes(prompt, call) == prefix_hashes(joined, call) != ()
    assert prompt.text_bytes == joined.text_bytes == len(prompt.text)
    for size in range(0, 600, 7):
        beginning = prompt.beginning(size)
        assert prompt.text.startswith(beginning)
        assert len(beginning) >= min(size, len(prompt.text))
