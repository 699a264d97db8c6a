"""A step time as it is configured, and as `fairlead calibrate` stores it: the same keys, in a file of their own.

The gateway reckons in seconds; people read milliseconds a step, microseconds a token, nanoseconds a token read.
"""

from pathlib import Path

import yaml
from pydantic import ValidationError

from gateway.config.sections import BackendSection, StepTimeSection
from policies import step_time as policy

FILE_BYTES_MAX = 64 << 10
DIGITS = 6


def read_configured_step_time(backend: BackendSection) -> policy.StepTime | None:
    """Return what is configured of a backend's step time. Raises ValueError where its file cannot be used."""
    stored = backend.step_time if backend.step_time_file is None else read_step_time(backend.step_time_file)
    if stored is None:
        return None
    model = policy.StepTimeModel(
        base_s=stored.base_ms / 1e3,
        token_s=stored.token_us / 1e6,
        context_token_s=stored.context_token_ns / 1e9,
        request_s=stored.request_us / 1e6,
    )
    return policy.StepTime(model, error_ratio=stored.error_ratio, is_sure=True)


def read_step_time(path: Path) -> StepTimeSection:
    """Read what `write_step_time` wrote, or somebody by hand. Raises ValueError."""
    try:
        with path.open(encoding="utf-8") as file:
            return StepTimeSection.model_validate(yaml.safe_load(file.read(FILE_BYTES_MAX)))
    except ValidationError as error:
        wrong = error.errors()[0]
        at = ".".join(map(str, wrong["loc"]))
        raise ValueError(f"the file {path} is not a step time: {at and f'{at}: '}{wrong['msg']}") from None
    except (OSError, UnicodeError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"the file {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def write_configured(step_time: policy.StepTime) -> dict[str, float]:
    """The same as it would be configured."""
    model = step_time.model
    return {
        "base_ms": model.base_s * 1e3,
        "token_us": model.token_s * 1e6,
        "context_token_ns": model.context_token_s * 1e9,
        "request_us": model.request_s * 1e6,
        "error_ratio": step_time.error_ratio,
    }


def write_step_time(path: Path, step_time: policy.StepTime) -> None:
    """Write what the configuration's `step_time_file` reads. Raises OSError."""
    stored = write_configured(step_time).items()
    path.write_text("".join(f"{name}: {value:.{DIGITS}g}\n" for name, value in stored), encoding="utf-8")
