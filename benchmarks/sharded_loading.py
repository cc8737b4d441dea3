"""What every process holds in memory while a checkpoint is loaded onto several.

    python -m benchmarks.sharded_loading --processes 1 2 4

Writes two checkpoints of random weights in several files, a target (1.2 GB in bfloat16) and a draft model of half its
layers, loads them on 1, 2 and 4 processes that all hold a part of both, and says of each process and model: the bytes
of its weights, the most that it had resident meanwhile and after, beyond what it had before. Pages of files that are
mapped count as resident. Writes results/sharded_loading.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from benchmarks.places import RESULTS
from benchmarks.ranks import start_others
from spec_sdk.bench.machine import machine_facts
from spec_sdk.bench.memory import forget_resident_peak, resident_peak
from spec_sdk.bench.output_option import add_output
from spec_sdk.bench.random_models import COMMON, hf_fields
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import run_script
from spec_sdk.config.composing import settings_for
from spec_sdk.errors import UserError
from spec_sdk.model.architectures import read_config, weights_of
from spec_sdk.model.models import Models
from spec_sdk.model.safetensors_reader import INDEX_NAME
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.pipeline import joined_backend
from spec_sdk.registry import Registry

GIGABYTE: dict[str, Any] = {
    **COMMON,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 10,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
FILE_BYTES = 200_000_000
"""Of a file of the checkpoint, about."""
BYTES = torch.bfloat16.itemsize
KEYS = ("linear_layers", "embedding", "peak", "resident")
T = TypeVar("T")


def write_sharded(directory: Path, fields: dict[str, Any]) -> int:
    """A checkpoint of random bfloat16 weights in several files; its bytes. Its tokenizer knows one word."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(fields))
    noise = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)).mul(0.02).bfloat16()
    files: list[dict[str, tuple[int, ...]]] = [{}]
    held = total = 0
    for name, shape in weights_of(read_config(fields, "config.json")).shapes.items():
        size = math.prod(shape) * BYTES
        if held and held + size > FILE_BYTES:
            files.append({})
            held = 0
        files[-1][name] = shape
        held, total = held + size, total + size
    weight_map: dict[str, str] = {}
    for i, shapes in enumerate(files):
        file = f"model-{i + 1:05d}-of-{len(files):05d}.safetensors"
        tensors = {
            name: noise.repeat(-(-math.prod(shape) // len(noise)))[: math.prod(shape)].view(shape)
            for name, shape in shapes.items()
        }
        save_file(tensors, directory / file)
        weight_map |= dict.fromkeys(shapes, file)
    (directory / INDEX_NAME).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(directory / "tokenizer.json"))
    return total


def load(directory: Path) -> dict[str, Any]:
    """This rank's part of both models, and what loading them took. Raises UserError where the kernel cannot tell."""
    settings = settings_for(["backend=accelerate", "backend.device=cpu", "backend.threads=1"])
    backend = joined_backend(settings, Registry.discover())
    ranks = backend.ranks
    # what a process has before it knows of a model is not what is asked about
    torch.ones(8, 8) @ torch.ones(8, 8)
    ops, target, draft = backend.ops, str(directory / "target"), str(directory / "draft")
    start = time.perf_counter()

    def load_target() -> Models:
        return Models(target, draft, "auto", backend.load, ops, backend.device, torch.bfloat16, ranks)

    models, held_of_target = measured(load_target)
    model, held_of_draft = measured(lambda: models.draft(among=ranks))
    seconds = time.perf_counter() - start
    found: dict[str, Any] = {"seconds_of_leader": seconds}
    for name, executor, held in (
        ("target", models.target.executor, held_of_target),
        ("draft", model.executor, held_of_draft),
    ):
        assert isinstance(executor, TorchExecutor)
        weights = sum(projection.nbytes for projection in executor.decoder.projections)
        everyone = ranks.all_gather(torch.tensor([weights, executor.decoder.embedding.nbytes, *held]))
        found[name] = [dict(zip(KEYS, row, strict=True)) for row in everyone.tolist()]
    ranks.close()
    return {**found, "machine": machine_facts(backend.hardware)}


def measured(make: Callable[[], T]) -> tuple[T, tuple[int, int]]:
    """What is made, and the bytes resident at most meanwhile and after, beyond those before."""
    before = forget_resident_peak()
    if before is None:
        raise UserError("this system does not let a process set its high-water mark of memory back (clear_refs)")
    made = make()
    peak = resident_peak() - before
    return made, (peak, (forget_resident_peak() or 0) - before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--shape", default="gigabyte", help="gigabyte, or one of spec_sdk.bench.random_models")
    add_output(parser, RESULTS / "sharded_loading.json")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        program = ("-m", "benchmarks.sharded_loading")
        others = [] if "RANK" in os.environ else start_others(arguments.processes[0], program)
        found = load(Path(arguments.load))
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps(found))
        return max((other.wait() for other in others), default=0)
    report: dict[str, Any] = {"shape": arguments.shape, "dtype": "bfloat16", "loads": {}}
    with tempfile.TemporaryDirectory(prefix="spec-sdk-shards-") as name:
        fields = GIGABYTE if arguments.shape == "gigabyte" else hf_fields(arguments.shape)
        half = {**fields, "num_hidden_layers": max(1, fields["num_hidden_layers"] // 2)}
        report["checkpoint_bytes"] = {
            model: write_sharded(Path(name, model), shape) for model, shape in (("target", fields), ("draft", half))
        }
        for model, stored in report["checkpoint_bytes"].items():
            print(f"{model}: {stored / 2**20:,.0f} MiB in bfloat16")
        print("MiB of each process:")
        print(
            f"{'processes':>9}{'model':>8}{'rank':>6}{'weights':>10}{'embedding':>11}{'peak':>8}{'after':>8}{'seconds':>9}"
        )
        for size in arguments.processes:
            command = [sys.executable, "-m", "benchmarks.sharded_loading", "--load", name, "--processes", str(size)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            report["machine"] = found.pop("machine")
            report["loads"][size] = found
            for model in ("target", "draft"):
                for rank, held in enumerate(found[model]):
                    columns = [held[key] / 2**20 for key in KEYS]
                    widths = zip(columns, (10, 11, 8, 8), strict=True)
                    seconds = f"{found['seconds_of_leader']:9.1f}" if (model, rank) == ("target", 0) else ""
                    row = f"{size:>9}{model:>8}{rank:>6}" + "".join(f"{c:>{w},.0f}" for c, w in widths)
                    print(row + seconds, flush=True)
    write_report(arguments.output, report)
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
