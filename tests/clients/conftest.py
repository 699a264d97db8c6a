"""The packages' ordinary calls, here to the embedded engine; tests/conformance/wire makes them to a real vLLM."""

import pytest
from house import house as gateway_house


@pytest.fixture(scope="session")
def house(tmp_path_factory):
    with gateway_house(tmp_path_factory.mktemp("house")) as served:
        yield served


@pytest.fixture(scope="session")
def embedding_house(house):
    """Where embeddings are made: an engine that writes may be another than one that reads."""
    return house
