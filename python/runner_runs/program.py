"""Finds the program `runner` and calls it."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import List, Optional


class RunnerError(Exception):
    """The program refused or failed; the text is the program's own message."""


def find_program() -> Path:
    """The path of the program: the one of `RUNNER_PROGRAM`, else the one installed with this module, else the one on the path.

    Raises FileNotFoundError if there is none.
    """
    name = "runner.exe" if sys.platform == "win32" else "runner"
    schemes = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    candidates = [os.environ.get("RUNNER_PROGRAM"), *(os.path.join(folder, name) for folder in schemes), shutil.which(name)]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    raise FileNotFoundError("the program `runner` is not on the path: install the wheel, or set RUNNER_PROGRAM to the program's path")


def call(arguments: List[str], folder: Optional[os.PathLike] = None) -> str:
    """The standard output of `runner ARGUMENTS`. `folder` is the folder of runs.

    Raises RunnerError with the program's message if it exits with another code than 0.
    """
    if folder is not None:
        arguments = [*arguments, "--runs", os.fspath(folder)]
    done = subprocess.run([os.fspath(find_program()), *arguments], capture_output=True, text=True, encoding="utf-8")
    if done.returncode != 0:
        raise RunnerError(done.stderr.strip() or f"`runner {arguments[0]}` exited with code {done.returncode}")
    return done.stdout
