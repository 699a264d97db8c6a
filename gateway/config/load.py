"""Configuration loading: reads file and environment once, and returns a Config or every problem found."""

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from backends.tls import server_context, tls_context
from gateway.api.token_counts import make_encoding
from gateway.config.config import ENV_DELIMITER, ENV_PREFIX, Config
from gateway.config.files import STDOUT, folder_of
from gateway.config.key_file import read_keys
from gateway.config.problems import (
    ConfigError,
    ConfigProblem,
    Lines,
    Loc,
    Variables,
    did_you_mean,
    locate,
    read_yaml,
    validation_problems,
)
from gateway.config.sections import BackendSection, PromptTokens, ServerTls, file_text
from gateway.config.step_time import read_configured_step_time

FILE_BYTES_MAX = 16 << 20
CONFIG_VARIABLE = "FAIRLEAD_CONFIG"

# Kubernetes sets such variables in every pod for a Service named "fairlead" (or "fairlead-...").
_SERVICE_LINK = re.compile(r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")


def load_config(path: Path | None = None, *, check_files: bool = True) -> Config:
    """Read the file, if any, and the environment. Raises ConfigError with all problems. `check_files`: also check that
    every file and variable that the configuration names can be read.
    """
    data, lines, problems = _read(path)
    variables, unknown = _variables(os.environ)
    problems += unknown
    config: Config | None = None
    try:
        # A section with nothing but comments is null in YAML: its defaults apply.
        config = Config(**{name: value for name, value in data.items() if value is not None})
    except ValidationError as error:
        from gateway.config.cross_section import disagreements_of_the_rest  # noqa: PLC0415 - only where it is wrong

        problems += validation_problems(error, Config, lines, variables)
        problems += [locate(loc, text, lines, variables) for loc, text in disagreements_of_the_rest(data, error)]
    except SettingsError as error:
        problems.append(_json_problem(error, variables))
    if config is not None:
        config = config.placed_in(folder_of(path))
    if config is not None and check_files:
        problems += [locate(loc, text, lines, variables) for loc, text in _file_problems(config)]
    if problems or config is None:
        raise ConfigError(_once(problems), path)
    return config


def _read(path: Path | None) -> tuple[dict[str, Any], Lines, list[ConfigProblem]]:
    if path is None:
        return {}, {}, []
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX).decode()
    except OSError as error:
        raise ConfigError([ConfigProblem((), f"the file cannot be read: {error.strerror}")], path) from error
    except UnicodeDecodeError as error:
        raise ConfigError([ConfigProblem((), "the file is not UTF-8")], path) from error
    data, lines, problems = read_yaml(text)
    if problems and not data:
        raise ConfigError(problems, path)
    return data, lines, problems


def _variables(environ: Mapping[str, str]) -> tuple[Variables, list[ConfigProblem]]:
    """Return the variable that sets each path, and a problem for each variable that would be ignored silently."""
    sections = list(Config.model_fields)
    known: Variables = {}
    unknown: list[ConfigProblem] = []
    for name in sorted(environ):
        rest = name.upper().removeprefix(ENV_PREFIX)
        if rest == name.upper() or name.upper() == CONFIG_VARIABLE:
            continue
        path = tuple(part.lower() for part in rest.split(ENV_DELIMITER))
        if path[0] in sections:
            known[path] = name
        elif len(path) > 1 or not _SERVICE_LINK.fullmatch(rest):
            unknown.append(
                ConfigProblem((), f"there is no section '{path[0]}'{did_you_mean(path[0], sections)}", variable=name)
            )
    return known, unknown


def _json_problem(error: SettingsError, variables: Variables) -> ConfigProblem:
    """The problem of a section's variable that is not JSON: pydantic-settings names only its field."""
    match = re.search(r'field "(\w+)"', str(error))
    section = match.group(1) if match else ""
    return ConfigProblem((section,), "must be JSON", variable=variables.get((section,)))


def _file_problems(config: Config) -> list[tuple[Loc, str]]:
    """The problems with the files and variables that the configuration names."""
    checks: list[tuple[Loc, Callable[[], object]]] = []
    for index, backend in enumerate(config.backends):
        checks.append(
            (("backends", index, "api_key_env" if backend.api_key_env else "api_key_file"), backend.credential)
        )
        checks.append((("backends", index, "step_time_file"), partial(read_configured_step_time, backend)))
        checks.append((("backends", index, "ca_file"), partial(_certificates, backend.ca_file)))
        checks.append((("backends", index, "cert_file"), partial(_client_certificate, backend)))
    checks += _checks_of_issuers(config)
    if config.state.redis is not None:
        checks.append((("state", "redis", "ca_file"), partial(_certificates, config.state.redis.ca_file)))
    checks += _checks_of_places(config)
    checks.append((("auth", "secret_file"), lambda: _secret(config)))
    # With the admin port enabled there may be no keys yet.
    if config.auth.mode == "keys" and not (config.admin.enabled and not config.auth.keys_file.exists()):
        checks.append((("auth", "keys_file"), lambda: _keys(config)))
    if config.budgets.webhook is not None:
        checks.append((("budgets", "webhook", "secret_file"), config.budgets.webhook.secrets))
        checks.append((("budgets", "webhook", "ca_file"), partial(_certificates, config.budgets.webhook.ca_file)))
    if config.admin.enabled:
        checks.append((("admin", "key_file"), lambda: _see_that_it_is_not_elsewhere(config.admin.key_file)))
    if config.state.redis is not None:
        checks.append((("state", "redis", "password_file"), config.state.redis.secret))
    if config.is_clustered:
        checks.append((("cluster", "secret_file"), config.cluster.secrets))
    checks.append((("prompt_tokens", "ranks_file"), partial(_encoding, config.prompt_tokens)))
    return [(loc, text) for loc, check in checks if (text := _complaint(check)) is not None]


def _checks_of_issuers(config: Config) -> Iterator[tuple[Loc, Callable[[], object]]]:
    for port, issuers in (("data", config.jwt.data), ("admin", config.jwt.admin)):
        for index, each in enumerate(issuers):
            yield ("jwt", port, index, "ca_file"), partial(_certificates, each.ca_file)
    for index, issuer in enumerate(config.jwt.admin):
        file = None if issuer.sign_in is None else issuer.sign_in.client_secret_file
        if file is not None:
            yield ("jwt", "admin", index, "sign_in", "client_secret_file"), partial(file_text, file)


def _checks_of_places(config: Config) -> list[tuple[Loc, Callable[[], object]]]:
    """The checks of listening addresses, of folders to write to, and of packages that the configuration needs."""
    checks: list[tuple[Loc, Callable[[], object]]] = [
        (("listen", "host"), partial(_address, config.listen.host)),
        (("tracing",), lambda: _tracing(config)),
    ]
    if config.admin.enabled:
        checks.append((("admin", "host"), partial(_address, config.admin.host)))
    if config.metrics.port is not None:
        checks.append((("metrics", "host"), partial(_address, config.metrics.host)))
    for port, tls in (
        ("listen", config.listen.tls),
        ("admin", config.admin.tls),
        ("cluster", config.cluster.tls if config.is_clustered else None),
    ):
        if tls is not None:
            checks.append(((port, "tls"), partial(_port_certificate, tls)))
    for section, log in (("access_log", config.access_log), ("trace_log", config.trace_log)):
        if log.enabled and log.path != STDOUT:
            checks.append(((section, "path"), partial(_folder, log.path)))
    if config.state.file is not None:
        checks.append((("state", "file"), partial(_folder, config.state.file)))
    for index, source in enumerate(config.discovery):
        if source.kubernetes is not None:
            package = partial(_installed, "kubernetes_asyncio", "kubernetes")
            checks.append((("discovery", index, "kubernetes"), package))
    return checks


def _certificates(path: Path | None) -> None:
    if path is not None:
        tls_context(path)


def _client_certificate(backend: BackendSection) -> None:
    if backend.cert_file is not None:
        tls_context(None, backend.cert_file, backend.key_file)


def _port_certificate(tls: ServerTls) -> None:
    server_context(tls.cert_file, tls.key_file)


def _address(host: str) -> None:
    try:
        socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"is no address: {getattr(error, 'strerror', None) or error}") from error


def _folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}")


def _tracing(config: Config) -> None:
    settings = config.tracing.settings(os.environ)
    if settings is not None and settings.protocol == "grpc":
        _installed("opentelemetry.exporter.otlp.proto.grpc", "otlp-grpc")


def _installed(package: str, extra: str) -> None:
    try:
        found = find_spec(package)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ValueError(f"needs a package that is not installed: pip install 'fairlead[{extra}]'")


def _complaint(check: Callable[[], object]) -> str | None:
    try:
        check()
    except ValueError as error:
        return str(error)
    return None


def _secret(config: Config) -> None:
    auth = config.auth
    if auth.mode == "keys" and auth.secret is None and not auth.secret_file.exists():
        if config.admin.enabled:
            _see_that_it_is_not_elsewhere(auth.secret_file)
            return  # it is generated at start
        raise ValueError(_missing(auth.secret_file))
    auth.secret_bytes()


def _missing(path: Path) -> str:
    _see_that_it_is_not_elsewhere(path)
    return f"there is no file {path} ('fairlead keys new TENANT' makes it)"


def _see_that_it_is_not_elsewhere(path: Path) -> None:
    """Raise ValueError where a missing secret is in the working directory. Generating a new one would silently
    invalidate all keys.
    """
    if not path.exists() and (there := Path.cwd() / path.name) != path and there.exists():
        raise ValueError(f"there is no file {path}, but there is {there}: paths are relative to the configuration file")


def _keys(config: Config) -> None:
    path = config.auth.keys_file
    if not path.exists():
        raise ValueError(_missing(path))
    read_keys(path)


def _encoding(settings: PromptTokens) -> None:
    if (ranks := settings.ranks()) is not None:
        make_encoding(ranks, encoding=settings.encoding, pattern=settings.pattern)


def _once(problems: list[ConfigProblem]) -> list[ConfigProblem]:
    """The problems in the order of the file, without duplicates."""
    return sorted(dict.fromkeys(problems), key=lambda problem: (problem.line is None, problem.line or 0))
