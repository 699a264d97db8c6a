"""Requests to a server about itself before it is measured; a failure is a CalibrationError with a one-line message."""

import json

from pydantic import SecretStr, ValidationError

from backends.catalog import ModelCard, read_models
from backends.poll import Poller, UnansweredError
from backends.poll_round import MODELS_BYTES_MAX
from backends.spec import BackendSpec
from gateway.calibrate.calls import CalibrationError
from gateway.config.sections import BackendSection

POLL_TIMEOUT_S = 10.0
UNAUTHORIZED = (401, 403)


def spec_of(url: str, key: SecretStr | None) -> BackendSpec:
    """The server at this root, called with this key. Raises CalibrationError."""
    try:
        backend = BackendSection(url=url)
    except ValidationError as error:
        raise CalibrationError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
    headers = {} if key is None else {"authorization": f"Bearer {key.get_secret_value()}"}
    return BackendSpec(backend.id, backend.url, headers)


async def model_card(poller: Poller, spec: BackendSpec, wanted: str | None) -> ModelCard:
    """The card of the server's model `wanted`, or of its first model (None). Raises CalibrationError."""
    body = await get(poller, spec, "/v1/models", MODELS_BYTES_MAX)
    try:
        cards = read_models(json.loads(body))
    except (ValueError, RecursionError) as error:
        raise CalibrationError(f"{spec.url} does not say what it serves: {error}") from error
    found = [card for card in cards if wanted in (None, card.id)]
    if not found:
        raise CalibrationError(f"{spec.url} serves {', '.join(card.id for card in cards) or 'nothing'}, not {wanted}")
    return found[0]


async def get(poller: Poller, spec: BackendSpec, path: str, bytes_max: int) -> bytes:
    """The body of a GET at this path. Raises CalibrationError."""
    try:
        return await poller.get(spec, path, bytes_max=bytes_max)
    except UnansweredError as error:
        is_unauthorized = error.status in UNAUTHORIZED
        raise CalibrationError(f"{spec.url}{error}{': it wants another API key' if is_unauthorized else ''}") from error
