"""Tiny models and files in the place of those that the commands of README and docs name."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk_drafters.datastore_file import END, fingerprint, write_datastore
from tests.docs.pages import DOCS, ROOT, blocks
from tests.support.run_records import write_bench, write_generate
from tests.support.text_checkpoints import VOCABULARY, write_text_checkpoint
from tests.support.tiny_blocks import BlockSizes, write_dflash
from tests.support.tiny_heads import HeadSizes, write_eagle3, write_head
from tests.support.tiny_hydra import write_hydra
from tests.support.tiny_medusa import write_medusa
from tests.support.tiny_mtp import mtp_tensors
from tests.support.tiny_peagle import write_peagle
from tests.support.tiny_whisper import sound, write_wav, write_whisper

SIZES = HeadSizes(V=VOCABULARY, W=VOCABULARY)
LAYERS = 30
"""As many as the default model has: guides name its layers, and heads read what some of them leave."""
SHALLOW = 8
NAMED = re.compile(
    r"layer|skip|exit|groups|size|head|checkpoint|eagle|mtp|medusa|hydra|block|config-dir|task=(export|report)"
)
"""In commands that are given the model with all its layers; the others' passes are four times as quick with few."""
CHEAP: dict[str, dict[str, object]] = {
    "task=tune_layers": {
        "task.prompts": 1,
        "task.tokens": 8,
        "task.positions": 2,
        "task.max_size": 2,
        "task.candidates": 1,
    },
    "task.latencies=measure": {"task.contexts": "[64]", "task.repeats": 2},
    "task=needle": {
        "task.context": 1000,
        "task.texts": 1,
        "task.hashes": 0,
        "task.facts": 1,
        "task.max_new_tokens": 32,
    },
    "task=advise": {"task.seconds": 1, "max_new_tokens": 8},
    "task=check": {"task.draws": 30},
    "task=accuracy": {"task.seeds": 1, "prompt_limit": 1},
    "policy.costs=measure": {"policy.costs": "learn"},
}
"""What makes a command short, instead of what it says."""
CHECKPOINTS = {
    "medusa": "medusa",
    "mtp": "mtp",
    "hydra": "hydra",
    "block": "dflash",
    "peagle": "peagle",
    "mixed_eagle": "eagle",
    "eagle": "eagle",
}


def write_stand_ins(place: Path) -> None:
    """Models, heads, sounds, texts and tables below ``place``."""
    write_text_checkpoint(place / "target", num_hidden_layers=LAYERS, max_position_embeddings=8192)
    write_text_checkpoint(place / "shallow", num_hidden_layers=SHALLOW, max_position_embeddings=8192)
    write_eagle3(place / "eagle", SIZES)
    write_medusa(place / "medusa", SIZES)
    write_hydra(place / "hydra", SIZES)
    write_dflash(place / "dflash", BlockSizes(V=VOCABULARY, W=VOCABULARY))
    write_head(place / "mtp", SIZES.config(num_hidden_layers=LAYERS), mtp_tensors("mimo", SIZES))
    write_peagle(place / "peagle", SIZES)
    write_whisper(place / "whisper")
    write_wav(place / "speech.wav", sound(0))
    lines = [{"audio": "speech.wav", "reference": "what is said"}, {"audio": "speech.wav"}]
    (place / "recordings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (place / "book.txt").write_text((DOCS / "retrieval.md").read_text(encoding="utf-8") * 4, encoding="utf-8")
    _write_datastore(place)
    [table] = [block for block in blocks(DOCS / "latency_estimator.md") if block.language == "yaml"]
    (place / "mine.yaml").write_text(table.text, encoding="utf-8")
    [pipeline] = [block for block in blocks(DOCS / "configuration.md") if block.language == "yaml"]
    (place / "yaml" / "pipeline").mkdir(parents=True)
    (place / "yaml" / "pipeline" / "mine.yaml").write_text(pipeline.text, encoding="utf-8")
    (place / "benchmarks").symlink_to(ROOT / "benchmarks")
    write_generate(place / "sky")
    for name in ("a", "b", "thresholds"):
        write_bench(place / ("outputs" if len(name) == 1 else ".") / name)


def _write_datastore(place: Path) -> None:
    tokenizer = open_checkpoint(str(place / "target")).tokenizer
    tokens = tokenizer.encode((place / "book.txt").read_text(encoding="utf-8"), add_special_tokens=False)
    vocabulary = tokenizer.vocabulary
    token_N = np.array([*tokens, END], np.uint32)
    write_datastore(place / "book.safetensors", token_N, len(vocabulary), fingerprint(vocabulary), "target")


def with_stand_ins(arguments: Sequence[str], place: Path) -> list[str]:
    """A command's arguments, with tiny models for those that it names, and a few tokens of one prompt."""
    speech = any(argument.startswith("audio=") for argument in arguments)
    model = place / ("whisper" if speech else "target" if NAMED.search(" ".join(arguments)) else "shallow")
    changed = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if {"-m", "--multirun"} & {*arguments} and not value.startswith(("[", "{")):
            value = ",".join(value.split(",")[:2])
        if name in ("model.target", "model.draft"):
            value = str(model)
        elif name in ("drafter.checkpoint", "drafter.model.checkpoint"):
            value = str(place / _head(arguments))
        elif name == "drafter.vocabulary":
            value = str(VOCABULARY // 2)
        elif name == "backend.native" and not any(map(shutil.which, ("g++", "clang++"))):
            value = "auto"
        elif name == "max_new_tokens":
            value = "4"
        elif name == "prompt_limit":
            value = "1"
        elif name == "drafter.members":
            value = re.sub(r"draft: \w+", f"draft: {model}", value)
        changed.append(f"{name}{equals}{value}")
    names = {argument.partition("=")[0] for argument in arguments}
    typed = set(arguments)
    defaults = {"model.target": str(model), "max_new_tokens": "4"}
    if "prompt_file" in names:
        defaults["prompt_limit"] = "1"
    if "pipeline=mtp_chain" in typed:
        defaults["drafter.checkpoint"] = str(place / "mtp")
    if "pipeline=eagle_tree" in typed and "drafter.checkpoint" not in names:
        defaults["drafter.checkpoint"] = str(place / "eagle")
    if {"task=export", "pipeline=sd_chain"} <= typed:
        # a tiny target has no installed draft, and a cut no files
        defaults["model.draft"] = str(model)
    if "pipeline=mixed_eagle" in typed and "drafter.model.checkpoint" not in names:
        defaults["drafter.model.checkpoint"] = str(place / "eagle")
    cheap = {name: value for option in typed & CHEAP.keys() for name, value in CHEAP[option].items()}
    changed = [argument for argument in changed if argument.partition("=")[0] not in cheap]
    added: dict[str, object] = {**{name: value for name, value in defaults.items() if name not in names}, **cheap}
    return changed + [f"{name}={value}" for name, value in added.items()]


def _head(arguments: Sequence[str]) -> str:
    pipeline = next(argument for argument in arguments if argument.startswith("pipeline=")).partition("=")[2]
    return next(head for name, head in CHECKPOINTS.items() if pipeline.startswith(name))


def write_installed_example(place: Path) -> None:
    """The example of a third party's package as it lies in an environment that it was installed into."""
    source = DOCS / "example_plugin"
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    shutil.copytree(source / "spec_sdk_follow", place / "spec_sdk_follow")
    about = place / "spec_sdk_follow-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1\n")
    points = project["entry-points"]["spec_sdk"]
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (about / "entry_points.txt").write_text(f"[spec_sdk]\n{lines}")
