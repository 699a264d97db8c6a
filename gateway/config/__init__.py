"""Configuration of the gateway: YAML and environment, validated as a whole and read once."""

from gateway.config.config import ANONYMOUS, OPEN_TENANT_PREFIX, Config
from gateway.config.load import CONFIG_VARIABLE, load_config
from gateway.config.problems import ConfigError, ConfigProblem

__all__ = [
    "ANONYMOUS",
    "CONFIG_VARIABLE",
    "OPEN_TENANT_PREFIX",
    "Config",
    "ConfigError",
    "ConfigProblem",
    "load_config",
]
