"""Runs as models of `transformers`."""

import os
import tempfile
from typing import Optional

from .program import call


def load_hf(name: os.PathLike, *, step: Optional[int] = None, best: bool = False, folder: Optional[os.PathLike] = None):
    """The pair (model, tokenizer) of a run's checkpoint, loaded by `transformers`, which must be installed with torch.

    The checkpoint is the newest, the one after `step` steps, or with `best` the one with the lowest validation loss. The tokenizer is
    None if the run's tokenizer has no file that `transformers` reads.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as scratch:
        choice = ["--best"] if best else [] if step is None else ["--step", str(step)]
        call(["export", os.fspath(name), scratch, "--to", "hf", *choice], folder)
        model = AutoModelForCausalLM.from_pretrained(scratch)
        has_tokenizer = os.path.exists(os.path.join(scratch, "tokenizer.json"))
        return model, AutoTokenizer.from_pretrained(scratch) if has_tokenizer else None
