"""Prediction modules of GGUF files beside llama.cpp: the logits that tiny random ones give, in float32.

    python -m benchmarks.module_logits --llama-python /path/to/env/bin/python

For each architecture with modules a file of a model with its module, and one of the module alone. Both programs are fed
the same tokens and states, then a token that was drafted behind them; of DeepSeek's kind the module is read as
llama.cpp reads it, whose children are fed under the final norm and whose first embedding is not zero. Fails where a
logit differs by more than ``--most``. Writes results/module_logits.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import torch

from benchmarks.places import RESULTS
from benchmarks.support import llama_module
from spec_sdk.bench.output_option import add_output
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import run_script, script_parser
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.draft_heads.mtp import MtpHead
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.tree import TreeBuilder
from tests.checkpoints.gguf_files import byte_level_vocabulary
from tests.checkpoints.gguf_modules import MODELS, WIDTH, Tensors, write_with_module
from tests.support.draft_logits import roots_of, rows_of
from tests.support.tiny_mtp import load_module

TOKENS, DRAFTED = [7, 8, 9, 10], 33
STATES = torch.randn(len(TOKENS), WIDTH, generator=torch.Generator().manual_seed(5))
Ask = Callable[[Path], dict[str, Any]]
"""What llama.cpp answers of a file."""


def main() -> int:
    parser = script_parser(__doc__, new_tokens=None, output=None, overrides=None)
    add_output(parser)
    parser.add_argument("--llama-python", required=True, help="a Python with llama-cpp-python")
    parser.add_argument("--most", type=float, default=1e-3)
    arguments = parser.parse_args()
    report: dict[str, Any] = {"models": {}}
    for name in MODELS:
        with tempfile.TemporaryDirectory() as directory:
            found = differences(name, Path(directory), lambda file: answer_of(arguments.llama_python, file))
        report["llama_cpp"] = found.pop("version")
        report["models"][name] = found
        print(f"{name}: {found}", flush=True)
    write_report(arguments.output or RESULTS / "module_logits.json", report)
    largest = max(of[kind] for of in report["models"].values() for kind in ("with its model", "alone"))
    return 0 if largest <= arguments.most else 1


def differences(name: str, directory: Path, ask: Ask) -> dict[str, Any]:
    """The largest ones of a model's two files, beside how far logits are from each other."""
    whole, found = directory / "m.gguf", dict[str, Any]()
    ends = None
    for kind, alone in (("with its model", False), ("alone", True)):
        file = directory / f"mtp-{whole.name}" if alone else whole
        write_with_module(file, name, change=few_sections, alone=alone, vocab_size=len(byte_level_vocabulary()[0]))
        if ends is None:
            ends = TargetEnds.of("tiny", load_decoder(open_checkpoint(str(file)), torch.device("cpu"), torch.float32))
        answer, own = ask(file), logits_of(file, ends)
        found |= {kind: float((torch.tensor(answer["logits"]) - own).abs().max()), "version": answer["version"]}
        found["deviation"] = float(own.std())
    return found


def few_sections(writer: gguf.GGUFWriter, parts: Tensors) -> None:
    """llama.cpp ends where rotary positions of several kinds have more dimensions than a head."""
    for key, entry in writer.kv_data[0].items():
        if key.endswith("rope.dimension_sections"):
            entry.value = [2, 1, 1, 0]


def logits_of(file: Path, ends: TargetEnds) -> torch.Tensor:
    """Behind the tokens, and behind the drafted one."""
    executor = load_module(file, ends, torch.float32)
    assert isinstance(executor.head, MtpHead)
    executor.head.variant = replace(executor.head.variant, feeds_normalized=True, first_embedding_is_zero=False)
    session, tree = DraftHeadSession(executor), TreeBuilder(TOKENS[-1])
    (root_V,) = roots_of(session.feed_pairs([0], [TOKENS], [STATES]))
    tree.add(0, DRAFTED, "chosen")
    return torch.stack([root_V, *rows_of(session.grow([0], [tree], [1]))[0]])


def answer_of(python: str, file: Path) -> dict[str, Any]:
    """llama.cpp's. Raises CalledProcessError where it cannot give one."""
    question = json.dumps({"tokens": TOKENS, "states": STATES.tolist(), "drafted": DRAFTED})
    run = subprocess.run(
        [python, str(llama_module.__file__), str(file)],
        input=question, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True, timeout=60,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


if __name__ == "__main__":
    sys.exit(run_script(main))
