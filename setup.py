"""Builds the wheel. With FAIRLEAD_COMPILE=1 it contains the hot modules compiled by mypyc, beside their sources.

Compiled are the decisions (policies/) and what reads every token (backends/meters/, backends/connection.py): typed code
that the interpreter spends most of a decision on (docs/results/relay.md). Everything else, and a wheel without the
variable, runs interpreted. So does the path of a call: mypyc 2.4 compiles coroutines wrongly that catch exceptions
around an await; with 31 modules of that path compiled that have none, a whole answer took 1.01 times the CPU, and with
62 modules compiled by Cython 3.3, 1.24 times.
Compiled modules behave the same, but are not open to what Python allows with classes: an interpreted class inherits
only from those that say so (`mypyc_attr`), and methods cannot be replaced.
"""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

COMPILED = (
    "policies/**/*.py",
    "backends/meters/*.py",
    "backends/connection.py",
    "gateway/continuation/continued.py",  # a meter, which inherits from one of backends/meters/
)
INTERPRETED = {
    # Values that leave the process. msgspec, orjson and pydantic read annotations, which mypyc does not keep.
    "policies/types.py",
    "policies/due_times.py",
    "policies/facts.py",
    "policies/accounts/checkpoint.py",
    "policies/admission/rate_window.py",
    "policies/sessions/checkpoint.py",
    "policies/step_time/model.py",
    # mypyc cannot compile a subclass of list.
    "policies/capacity/candidates.py",
}


def modules() -> list[str]:
    """The files to compile, sorted."""
    found = {path.as_posix() for pattern in COMPILED for path in Path().glob(pattern)}
    assert found >= INTERPRETED, "what is left out exists"
    return sorted(found - INTERPRETED)


def parallel(build_ext: type) -> type:
    """The command with one compiler for each processor: nearly all is one extension, whose files distutils compiles in
    turn.
    """

    class ParallelBuild(build_ext):  # type: ignore[misc]
        def build_extensions(self) -> None:
            compiler = self.compiler
            compile_files, compile_file = compiler.compile, compiler._compile  # noqa: SLF001 - has no public name

            def compile_parallel(*arguments: Any, **options: Any) -> list[str]:
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    begun: list[Future[None]] = []
                    compiler._compile = lambda *file: begun.append(pool.submit(compile_file, *file))  # noqa: SLF001
                    objects: list[str] = compile_files(*arguments, **options)
                for file in begun:
                    file.result()  # raises what the compiler said
                return objects

            compiler.compile = compile_parallel
            super().build_extensions()

    return ParallelBuild


if __name__ == "__main__":
    from setuptools import setup  # here, because it replaces distutils, also for a test that only reads `modules`

    if os.environ.get("FAIRLEAD_COMPILE") == "1":
        from mypyc.build import mypycify
        from setuptools.command.build_ext import build_ext

        setup(
            ext_modules=mypycify(
                ["--config-file", "pyproject.toml", *modules()], opt_level="3", debug_level="0", multi_file=True
            ),
            cmdclass={"build_ext": parallel(build_ext)},
        )
    else:
        setup()
