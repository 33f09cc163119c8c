"""Reads the runs of the program `runner`: their metrics, tokens and weights. There is no training code here."""

from .hugging_face import load_hf
from .program import RunnerError, find_program
from .runs import Run, metrics, run, runs
from .tokens import read_tokens

__all__ = ["Run", "RunnerError", "find_program", "load_hf", "metrics", "read_tokens", "run", "runs"]
