"""The --config option that commands share: its value, else FAIRLEAD_CONFIG, else fairlead.yaml in the current folder.

Importing this file loads no server.
"""

from pathlib import Path
from typing import Annotated

import typer

CONFIG_NAME = "fairlead.yaml"


def _found_config(given: Path | None) -> Path | None:
    """The given file, else the one in the current folder, else None."""
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
