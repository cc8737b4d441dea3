"""``task=build_datastore``: texts, as a file in which ``drafter.datastore`` looks up what followed the last tokens."""

from __future__ import annotations

import sys
import time
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np

from spec_sdk.contracts import Task, option
from spec_sdk.counted import counted
from spec_sdk.errors import UserError
from spec_sdk.files import expanded
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.settings import Settings
from spec_sdk_drafters.datastore_file import END, fingerprint, is_datastore, write_datastore
from spec_sdk_drafters.datastore_texts import documents


@dataclass
class BuildDatastoreConfig:
    """Options of ``task=build_datastore``."""

    texts: Any = option(
        None,
        "a file or a list of them: text, .jsonl with a text or messages a line, or a run's metrics.json: its answers",
    )
    output: str | None = option(None, "the file to write")


class BuildDatastore(Task):
    """Makes a datastore of texts, in the target's tokens, for drafter.datastore: retrieval as in REST."""

    name = "build_datastore"
    computes = False
    Config = BuildDatastoreConfig
    config: BuildDatastoreConfig

    def run(self, app: Settings) -> int:
        """The override that uses the file goes to stdout; returns 0. Raises UserError for what cannot be read."""
        config = self.config
        if not config.output:
            raise UserError("task.output: is not given; task=build_datastore task.texts=FILE task.output=FILE")
        output = expanded(config.output, "task.output")
        if output.is_dir():
            raise UserError(f"task.output: {output} is a directory; name a file in it")
        if output.exists() and not is_datastore(output):
            raise UserError(f"task.output: {output} is there already and is no datastore; name another file")
        names = _names(config.texts)
        source = open_checkpoint(app.model.target)
        tokenizer, began = source.tokenizer, time.perf_counter()
        tokens, texts = array("I"), 0
        for name in names:
            for document in documents(expanded(name, "task.texts"), "task.texts"):
                before = len(tokens)
                for part in document:
                    tokens.extend(tokenizer.encode(part, add_special_tokens=False))
                if len(tokens) > before:
                    tokens.append(END)
                    texts += 1
        if not texts:
            raise UserError(f"task.texts: there is no text in {', '.join(names)}")
        token_N = np.frombuffer(tokens, np.uint32)
        write_datastore(
            output, token_N.copy(), source.config.vocab_size, fingerprint(tokenizer.vocabulary), source.name
        )
        seconds = time.perf_counter() - began
        print(
            f"{output}: {counted(texts, 'text')}, {len(tokens) - texts} tokens of {source.name}, {seconds:.1f} s",
            file=sys.stderr,
        )
        print(f"drafter.datastore={output}")
        return 0


def _names(files: Any) -> list[str]:
    """One name or a list of them. Raises UserError for anything else."""
    names = [files] if isinstance(files, str) else files
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise UserError(f"task.texts: {files!r} must be a file or a list of files, as in task.texts=[answers.jsonl]")
    return names
