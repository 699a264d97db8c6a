"""langchain-openai's chat model and embeddings, with another base_url."""

from importlib import import_module

import pytest

TALK = [("system", "Be brief."), ("human", "Hello")]


@pytest.fixture(scope="session")
def langchain_package():
    """Imported by the worker that needs it: all of them collect these tests, and it takes seconds."""
    return import_module("langchain_openai")


@pytest.fixture
def model(langchain_package, house):
    return langchain_package.ChatOpenAI(
        model="tiny",
        base_url=house.base_url,
        api_key=house.key,
        max_completion_tokens=8,
        temperature=0,  # what a real model says is the same each time, and no sampled end comes early
        max_retries=0,
        stream_usage=True,
    )


def test_langchain_chats(model):
    answer = model.invoke(TALK)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] == 8


def test_langchain_streams_with_usage(model):
    chunks = list(model.stream(TALK))
    whole = sum(chunks[1:], chunks[0])
    assert whole.content
    assert whole.usage_metadata["output_tokens"] == 8


async def test_langchain_chats_and_streams_asynchronously(model):
    assert (await model.ainvoke("Hello")).content
    assert [chunk async for chunk in model.astream("Hello")]


def test_langchain_asks_in_batches(model):
    assert [bool(answer.content) for answer in model.batch(["a", "b", "c"])] == [True] * 3


def test_langchain_uses_the_responses_api(langchain_package, house):
    model = langchain_package.ChatOpenAI(
        model="tiny", base_url=house.base_url, api_key=house.key, max_completion_tokens=8, temperature=0,
        use_responses_api=True,
    )  # fmt: skip
    assert model.invoke("Hello").usage_metadata["output_tokens"] == 8


def test_langchain_embeds(langchain_package, embedding_house):
    house = embedding_house
    # Its own cutting of texts wants the tokenizer of a model that it knows.
    model = langchain_package.OpenAIEmbeddings(
        model="tiny", base_url=house.base_url, api_key=house.key, check_embedding_ctx_length=False, max_retries=0
    )
    assert len(model.embed_documents(["a", "b"])) == 2
