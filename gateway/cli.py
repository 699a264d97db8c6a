"""The command line `fairlead`. Every command imports modules when it runs, so that --help is quick."""

import errno
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperGroup

from gateway.options import ConfigOption, fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.config import Config
    from gateway.config.key_file import KeyRecord

T = TypeVar("T")

HMAC_CHARS_SHOWN = 12
REVOKE_CHARS_MIN = 4
WRITE_FAILURES: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of write(2), where output is a file

PARTS: Final = {
    "simulate": ("gateway.simulate.cli", "app"),
    "admin": ("gateway.admin.command.cli", "app"),
    "calibrate": ("gateway.calibrate.cli", "calibrate"),
    "bench": ("gateway.bench.cli", "bench"),
    "top": ("gateway.top.cli", "top"),
}
"""Commands of other rooms: the module of each, and the group or function there."""


class CommandGroup(TyperGroup):
    """The group of all commands of `fairlead`: those in this file, and those that PARTS names, whose modules are
    imported only when they are called.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *PARTS]

    def invoke(self, ctx: Any) -> Any:
        """Run a command. The error message for an invalid option value contains no text of a library."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in PARTS:
            return super().get_command(ctx, cmd_name)
        module, name = PARTS[cmd_name]
        part = getattr(import_module(module), name)
        if isinstance(part, typer.Typer):
            command: Any = typer.main.get_group(part)
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
            alone.command()(part)
            command = typer.main.get_command(alone)
        command.name = cmd_name
        return command


app = typer.Typer(
    name="fairlead",
    cls=CommandGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},  # commands have it from here
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    help="A fair-queueing reverse proxy for shared vLLM servers.\n\n"
    "Clients change one URL. Every tenant gets its own queue, and is charged token by token while answers stream.",
    epilog="Try it: **fairlead serve**. Then: **fairlead example-config > fairlead.yaml**",
)
keys_app = typer.Typer(
    no_args_is_help=True,
    help="Make, list and revoke API keys.\n\n"
    "Only the HMAC of a key is stored. A running gateway applies a change within seconds.",
)
app.add_typer(keys_app, name="keys")


def main() -> None:
    try:
        app()
    except OSError as error:  # typer itself ends at EPIPE
        if error.errno not in WRITE_FAILURES:
            raise
        print(f"the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        from importlib import metadata, util  # noqa: PLC0415

        found = util.find_spec("policies.scheduler")
        compiled = " (compiled)" if found and found.origin and found.origin.endswith(".so") else ""
        typer.echo(f"fairlead {metadata.version('fairlead')}{compiled}")
        raise typer.Exit


@app.callback()
def _fairlead(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="The address to listen at. It overrides the configuration.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="The port; 0: any free port.")] = None,
) -> None:
    """Serve the API, until SIGTERM or Ctrl-C.

    Without a configured backend, an embedded engine answers. Without a configuration, every API key is a tenant. The
    admin port then opens on this machine, and the command prints a link to it: good for trying out.
    An environment variable overrides a setting of the file: FAIRLEAD_QUEUE__WAIT_S_MAX=30 is queue.wait_s_max.
    """
    import gc  # noqa: PLC0415

    gc.disable()  # until the gateway serves (gateway/serve.py): collections are a fifth of the time of its imports
    try:
        _serve(config, host, port)
    finally:
        gc.enable()


def _serve(config: Path | None, host: str | None, port: int | None) -> None:
    settings = _load(config)
    _warn(settings)
    address = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = settings.listening_at(address)
    from gateway.config.trial import made_trial  # noqa: PLC0415
    from gateway.serve import serve as run  # noqa: PLC0415
    from gateway.store.base import StateFileError, StoreUnavailable  # noqa: PLC0415

    try:
        run(made_trial(settings) if config is None else settings, config)
    except OSError as error:
        hint = ". Stop what listens there, or set another port" if error.errno == errno.EADDRINUSE else ""
        fail(f"{error}{hint}")
    except (ValueError, StateFileError, StoreUnavailable) as error:  # for example no secret
        fail(str(error))


@app.command("check-config")
def check_config(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The YAML file.", show_default=False)],
) -> None:
    """Report all errors of a configuration, or summarize a valid one.

    An error names the file and line, or the environment variable, and the setting. If there is one, the exit code
    is 1. The command also reads the files that the configuration names (keys, secrets). It warns of a setting that is
    valid but probably a mistake.
    """
    settings = _load(file)
    _warn(settings)
    typer.echo(f"{file}: valid")
    for line in _summary(settings):
        typer.echo(f"  {line}")


@app.command("example-config")
def example_config() -> None:
    """Print a configuration with every setting, its default and its meaning."""
    from importlib import resources  # noqa: PLC0415

    typer.echo(resources.files("gateway").joinpath("fairlead.example.yaml").read_text(encoding="utf-8"), nl=False)


@app.command("config-schema")
def print_config_schema() -> None:
    """Print the JSON schema of the configuration, for an editor.

    For an editor with yaml-language-server, begin your YAML with "# yaml-language-server: $schema=FILE".
    """
    import json  # noqa: PLC0415

    from gateway.config.schema import config_schema  # noqa: PLC0415

    typer.echo(json.dumps(config_schema(), indent=2))


@app.command("export")
def export_state(config: ConfigOption = None) -> None:
    """Print what the admin API made (tenants, tiers, keys as HMACs, backends, pools) as JSON.

    The gateway may run. The export has neither entries of the configuration file, nor usage, nor the audit log.
    """
    from gateway.registry.transfer import export_from  # noqa: PLC0415

    typer.echo(_of_state(lambda: export_from(_load(config), config)), nl=False)


@app.command("import")
def import_state(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The output of 'fairlead export'.")],
    config: ConfigOption = None,
) -> None:
    """Create or change the resources of an export; all others stay as they are.

    Running gateways apply them within a second. A key works only with the secret that made its HMAC.
    """
    from gateway.registry.transfer import import_into  # noqa: PLC0415

    count = _of_state(lambda: import_into(_load(config), config, file))
    typer.echo(f"{count} made or changed")


@keys_app.command("new")
def keys_new(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="The tenant of the key.", show_default=False)],
    config: ConfigOption = None,
) -> None:
    """Make a key for a tenant and print it, once.

    The HMAC of the key is stored in auth.keys_file. If there is no secret for HMACs, it is made in auth.secret_file.
    Keep the secret: without it no key is valid.
    """
    from gateway.config.key_file import add_key  # noqa: PLC0415

    settings = _load(config, check_files=False)
    _check_tenant(tenant, settings)
    path = settings.auth.keys_file
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        add_key(path, tenant=tenant, secret=_secret(settings), created_at=made_at, show=typer.echo)
    except (OSError, ValueError) as error:
        fail(str(error))
    typer.echo(f"This is the only time the key is shown. Its HMAC is in {path}.", err=True)
    if settings.auth.mode == "open":
        typer.echo("Keys are not checked until the configuration says auth.mode: keys.", err=True)
    else:
        typer.echo("A running gateway knows it within seconds.", err=True)


@keys_app.command("list")
def keys_list(config: ConfigOption = None) -> None:
    """List the keys by tenant: their last four characters, the start of their HMAC, and when they were made."""
    from gateway.config.key_file import read_keys  # noqa: PLC0415

    try:
        records = read_keys(_load(config, check_files=False).auth.keys_file)
    except ValueError as error:
        fail(str(error))
    for record in sorted(records, key=lambda record: (record.tenant, record.created_at)):
        typer.echo(_shown(record))


@keys_app.command("revoke")
def keys_revoke(
    mark: Annotated[
        str,
        typer.Argument(
            metavar="KEY", help="The start of the key's HMAC, or the key's last four characters.", show_default=False
        ),
    ],
    config: ConfigOption = None,
) -> None:
    """Remove one key. A running gateway accepts the key for a few more seconds."""
    from gateway.config.key_file import revoke_key  # noqa: PLC0415

    if len(mark) < REVOKE_CHARS_MIN:
        fail(f"give at least {REVOKE_CHARS_MIN} characters")
    try:
        found = revoke_key(_load(config, check_files=False).auth.keys_file, mark)
    except (OSError, ValueError) as error:
        fail(str(error))
    if not found:
        fail("there is no such key, see 'fairlead keys list'")
    if len(found) > 1:
        fail("more than one key is like that:\n" + "\n".join(map(_shown, found)))
    typer.echo(f"revoked: {_shown(found[0])}")


@keys_app.command("accept-secret")
def keys_accept_secret(config: ConfigOption = None) -> None:
    """Replace the secret of the keys in the state by the configured secret.

    Every API key and admin key that was made with the old secret stops working. Restart all gateways of this state
    with the new secret.
    """
    from gateway.identity.key_secret import accept  # noqa: PLC0415

    _of_state(lambda: accept(_load(config), config))
    typer.echo("The state is of this secret now.")


def _load(path: Path | None, *, check_files: bool = True) -> "Config":
    from gateway.config import ConfigError, load_config  # noqa: PLC0415

    try:
        return load_config(path, check_files=check_files)
    except ConfigError as error:
        fail(str(error))


def _warn(settings: "Config") -> None:
    """Print what is valid, and probably not meant."""
    from gateway.config.doubts import doubts  # noqa: PLC0415

    for doubt in doubts(settings):
        typer.echo(f"warning: {doubt}", err=True)


def _of_state(work: "Callable[[], T]") -> "T":
    from gateway.registry.changes import RegistryError  # noqa: PLC0415
    from gateway.store.base import StateFileError, StoreFull, StoreUnavailable  # noqa: PLC0415

    try:
        return work()
    except (OSError, ValueError, RegistryError, StateFileError, StoreFull, StoreUnavailable) as error:
        fail(str(error))


def _check_tenant(tenant: str, settings: "Config") -> None:
    if settings.tenants and tenant not in settings.tenants:
        from gateway.config.problems import did_you_mean  # noqa: PLC0415

        fail(f"there is no tenant '{tenant}' in the configuration{did_you_mean(tenant, list(settings.tenants))}")


def _secret(settings: "Config") -> bytes:
    """The secret of the HMACs, made if there is none. Raises ValueError, and OSError where it cannot be written."""
    from gateway.config.key_file import make_secret, read_keys  # noqa: PLC0415

    auth = settings.auth
    if auth.secret is None and not auth.secret_file.exists():
        if read_keys(auth.keys_file):
            raise ValueError(f"{auth.keys_file} has keys, but their secret {auth.secret_file} is gone: restore it")
        make_secret(auth.secret_file)
    return auth.given_secret()


def _summary(settings: "Config") -> list[str]:
    from gateway.config.key_file import read_keys  # noqa: PLC0415

    backends = ", ".join(backend.id for backend in settings.backends)
    embedded = f"the embedded engine, as {settings.engine.coefficients}"
    lines = [
        f"listen: {settings.listen.host}:{settings.listen.port}",
        f"backends: {len(settings.backends)} ({backends})" if backends else f"backends: none, so {embedded}",
        f"tiers: {', '.join(tier.id for tier in settings.policy_tiers())}",
        f"tenants: {len(settings.tenants)}",
        f"fairness: {settings.scheduling.fairness}, prediction: {settings.scheduling.prediction}",
    ]
    if (ranks := settings.prompt_tokens.ranks()) is not None:
        lines.append(f"prompt tokens: exact, with {len(ranks.merges)} ranks of SHA-256 {ranks.sha256}")
    if settings.auth.mode == "open":
        return [*lines, "auth: open, every API key is its own tenant (for trying out)"]
    records = read_keys(settings.auth.keys_file)
    lines.append(f"auth: keys, {len(records)} in {settings.auth.keys_file}")
    strangers = sorted({record.tenant for record in records} - set(settings.tenants))
    if strangers:
        lines.append(f"note: keys of tenants that are not configured are refused: {', '.join(strangers)}")
    keyless = sorted(set(settings.tenants) - {record.tenant for record in records})
    if keyless:
        lines.append(f"note: tenants without a key: {', '.join(keyless)}")
    return lines


def _shown(record: "KeyRecord") -> str:
    return f"{record.tenant}  ...{record.last_four}  {record.hmac[:HMAC_CHARS_SHOWN]}  {record.created_at}"


if __name__ == "__main__":
    main()
