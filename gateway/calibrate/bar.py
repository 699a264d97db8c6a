"""How far a calibration is, on standard error: a bar for people, a line for every change of the load elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.calibrate import run


@contextmanager
def shown(seconds: float) -> Iterator[Callable[[run.Progress], None]]:
    """What is to be told how far it is. The bar is full when the time is over and there are enough windows."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("asking the backend ...", total=1.0)

        def tell(now: run.Progress) -> None:
            part = min(now.seconds / seconds, now.windows / run.WINDOWS_MIN, 1.0)
            text = f"{now.concurrent} calls at once, {now.windows} windows of at least {run.WINDOWS_MIN}"
            bar.update(task, completed=part, description=text)

        yield tell


class _Lines:
    def __init__(self) -> None:
        self._concurrent = 0

    def __call__(self, now: run.Progress) -> None:
        if now.concurrent != self._concurrent:
            self._concurrent = now.concurrent
            text = f"{now.concurrent} calls at once ... ({now.windows} windows after {now.seconds:.0f} s)"
            print(text, file=sys.stderr)  # noqa: T201 - for people
