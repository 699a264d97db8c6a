"""Options that commands share: --config, FAIRLEAD_CONFIG, or the fairlead.yaml that lies here. No server is loaded."""

from pathlib import Path
from typing import Annotated

import typer

CONFIG_NAME = "fairlead.yaml"


def _found_config(given: Path | None) -> Path | None:
    """The file that was named, else the one of this folder."""
    here = Path(CONFIG_NAME)
    return here if given is None and here.is_file() else given


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="FAIRLEAD_CONFIG",
        metavar="FILE",
        callback=_found_config,
        help=f"The YAML file; where none is named, {CONFIG_NAME} of this folder, if there is one.",
    ),
]
