"""The progress of a measurement on standard error: a bar on a terminal, elsewhere a line for every stage."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

Tell = Callable[[float, str, str], None]  # which part is done (0 to 1), the stage, and more of it


@contextmanager
def progress_bar() -> Iterator[Tell]:
    """Show progress until the block ends. Yields the function that gets the completed part, 0 to 1, and the stage."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("asking the backend ...", total=1.0)

        def show(part: float, stage: str, more: str) -> None:
            bar.update(task, completed=part, description=f"{stage}, {more}" if more else stage)

        yield show


class _Lines:
    def __init__(self) -> None:
        self._stage = ""

    def __call__(self, part: float, stage: str, more: str) -> None:
        if stage != self._stage:
            self._stage = stage
            print(f"{stage} ... ({more})" if more else f"{stage} ...", file=sys.stderr)  # noqa: T201 - for people
