"""The packages' ordinary calls, once more, on a real vLLM; and those that an engine of made-up words cannot answer.

The model knows nothing, so tools and structured outputs are asked for in ways that leave it no choice: vLLM lets it
write nothing but what the schema allows.
"""

from typing import Literal

import anthropic
import instructor
import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from test_anthropic_package import *  # noqa: F403
from test_langchain import *  # noqa: F403
from test_node import *  # noqa: F403
from test_openai_package import *  # noqa: F403

HELLO = [{"role": "user", "content": "How is it in Rome?"}]


class Weather(BaseModel):
    sky: Literal["sunny", "cloudy"]
    windy: bool


WEATHER = {"name": "weather", "description": "What is it like?", "parameters": Weather.model_json_schema()}


def test_openai_parses_a_structured_answer(openai_client):
    answer = openai_client.chat.completions.parse(
        model="tiny", messages=HELLO, response_format=Weather, max_tokens=100, seed=1
    )
    assert isinstance(answer.choices[0].message.parsed, Weather)


def test_openai_streams_a_structured_answer(openai_client):
    with openai_client.chat.completions.stream(
        model="tiny", messages=HELLO, response_format=Weather, max_tokens=100, seed=1
    ) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Weather)


def test_openai_parses_a_structured_response(openai_client):
    response = openai_client.responses.parse(
        model="tiny", input="How is it?", text_format=Weather, max_output_tokens=100
    )
    assert isinstance(response.output_parsed, Weather)


def test_openai_finds_a_response_again_and_goes_on_from_it(openai_client):
    made = openai_client.responses.create(model="tiny", input="Hello", max_output_tokens=8, store=True)
    found = openai_client.responses.retrieve(made.id)
    assert (found.id, found.output_text) == (made.id, made.output_text)
    turn = openai_client.responses.create(
        model="tiny", input="And then?", max_output_tokens=8, previous_response_id=made.id
    )
    assert turn.usage.input_tokens > made.usage.input_tokens


def test_openai_cancels_a_response_in_the_background(openai_client, house):
    made = openai_client.responses.create(
        model="tiny",
        input="Hello",
        max_output_tokens=4000,
        background=True,
        store=True,
        extra_body={"ignore_eos": True},
    )
    assert made.status in {"queued", "in_progress"}
    assert openai_client.responses.cancel(made.id).status == "cancelled"
    until(lambda: house.in_flight() == 0)  # noqa: F405


def test_openai_does_not_find_another_tenants_response(openai_client, house):
    made = openai_client.responses.create(model="tiny", input="Hello", max_output_tokens=8, store=True)
    with (
        openai.OpenAI(base_url=house.base_url, api_key=house.other_key, max_retries=0) as other,
        pytest.raises(openai.NotFoundError),
    ):
        other.responses.retrieve(made.id)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_openai_calls_a_tool(openai_client, stream):
    """By its name and what it was called with, as far as the model got."""
    call = {
        "model": "tiny",
        "messages": HELLO,
        "tools": [{"type": "function", "function": WEATHER}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "max_tokens": 40,
        "temperature": 0,
    }
    if not stream:
        message = openai_client.chat.completions.create(**call).choices[0].message
        assert message.tool_calls or message.content
        return
    chunks = list(openai_client.chat.completions.create(**call, stream=True))
    names = [tool.function.name for chunk in chunks for tool in chunk.choices[0].delta.tool_calls or ()]
    assert names[0] == "weather"


def test_anthropic_offers_a_tool(house):
    tool = {"name": "weather", "description": "What is it like?", "input_schema": Weather.model_json_schema()}
    with anthropic.Anthropic(base_url=house.url, api_key=house.key, max_retries=0) as client:
        message = client.messages.create(
            model="tiny", messages=HELLO, max_tokens=20, tools=[tool], extra_body={"temperature": 0}
        )
    assert {block.type for block in message.content} <= {"text", "tool_use"}
    assert message.usage.output_tokens == 20


def test_langchain_parses_a_structured_answer(house):
    model = ChatOpenAI(model="tiny", base_url=house.base_url, api_key=house.key, max_completion_tokens=100, seed=1)
    assert isinstance(model.with_structured_output(Weather, method="json_schema").invoke("Rome?"), Weather)


def test_langchain_binds_tools(house):
    model = ChatOpenAI(
        model="tiny", base_url=house.base_url, api_key=house.key, max_completion_tokens=20, temperature=0
    )
    answer = model.bind_tools([Weather]).invoke("Rome?")
    assert answer.usage_metadata["output_tokens"] == 20


def test_instructor_makes_a_model_of_an_answer(openai_client):
    client = instructor.from_openai(openai_client, mode=instructor.Mode.JSON_SCHEMA)
    weather = client.chat.completions.create(
        model="tiny", messages=HELLO, response_model=Weather, max_tokens=100, max_retries=1, seed=1
    )
    assert isinstance(weather, Weather)


async def test_instructor_streams_a_model_as_it_grows(house):
    async with openai.AsyncOpenAI(base_url=house.base_url, api_key=house.key, max_retries=0) as plain:
        client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
        parts = [
            part
            async for part in client.chat.completions.create_partial(
                model="tiny", messages=HELLO, response_model=Weather, max_tokens=100, seed=1
            )
        ]
    assert isinstance(Weather.model_validate(parts[-1].model_dump()), Weather)
