"""Step time in the configuration, with the same keys as in the file that `fairlead calibrate` writes.

The gateway computes in seconds; the keys are milliseconds per step, microseconds per token, nanoseconds per token read.
"""

from pathlib import Path

import yaml
from pydantic import ValidationError

from gateway.config.reasons import reason_of
from gateway.config.sections import BackendSection, StepTimeSection
from policies import step_time as policy

FILE_BYTES_MAX = 64 << 10
DIGITS = 6


def read_configured_step_time(backend: BackendSection) -> policy.StepTime | None:
    """Return the configured step time of a backend; None where there is none. Raises ValueError where its file cannot
    be used.
    """
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
    """Read a step time file, written by `write_step_time` or by hand. Raises ValueError."""
    try:
        with path.open(encoding="utf-8") as file:
            return StepTimeSection.model_validate(yaml.safe_load(file.read(FILE_BYTES_MAX)))
    except ValidationError as error:
        wrong = error.errors()[0]
        at = ".".join(map(str, wrong["loc"]))
        raise ValueError(f"the file {path} is not a step time: {at and f'{at}: '}{reason_of(wrong)}") from None
    except (OSError, UnicodeError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"the file {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def write_configured(step_time: policy.StepTime) -> dict[str, float]:
    """The step time as configuration keys."""
    model = step_time.model
    return {
        "base_ms": model.base_s * 1e3,
        "token_us": model.token_s * 1e6,
        "context_token_ns": model.context_token_s * 1e9,
        "request_us": model.request_s * 1e6,
        "error_ratio": step_time.error_ratio,
    }


def write_step_time(path: Path, step_time: policy.StepTime) -> None:
    """Write a file for the configuration's `step_time_file`. Raises OSError."""
    stored = write_configured(step_time).items()
    path.write_text("".join(f"{name}: {value:.{DIGITS}g}\n" for name, value in stored), encoding="utf-8")
