"""What is sound: tiny models of several families and layouts, draft heads, a GGUF, a recording, prompts, YAML."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors.torch import load_file, save_file

from tests.checkpoints.gguf_files import add_gemma_tokenizer, add_sentencepiece, write_gguf
from tests.support.text_checkpoints import write_text_checkpoint
from tests.support.tiny_blocks import BlockSizes, write_dflash, write_dspark
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_heads import HeadSizes, write_eagle1, write_eagle3, write_head
from tests.support.tiny_hydra import write_hydra
from tests.support.tiny_medusa import medusa_tensors, vllm_config, vllm_tensors, write_medusa
from tests.support.tiny_mtp import SIZES, add_module, model_config, mtp_tensors, write_module
from tests.support.tiny_whisper import sound, write_wav, write_whisper

FAMILIES = ("smollm", "mistral_sliding", "qwen2_moe", "qwen3", "gemma2", "gemma3", "mixtral", "long_rope", "yarn_qwen2")
HEADS = {
    "eagle": ("eagle_tree", ("eagle1", "eagle3", "eagle3_reduced")),
    "medusa": ("medusa_tree", ("medusa", "medusa_vllm")),
    "hydra": ("hydra_tree", ("hydra", "hydra_prefix")),
    "block": ("block_tree", ("dflash", "dspark")),
    "mtp": ("mtp_chain", ("mtp", "mtp_qwen")),
}
"""Drafter → pipeline, and the heads that it takes."""
PROMPTS = [{"prompt": "a b c"}, {"question_id": 7, "turns": ["d e", "f"]}]


@dataclass(frozen=True)
class Material:
    """The directory of all of it. It is made once, and only copies are broken."""

    root: Path

    def __getattr__(self, name: str) -> Path:
        return self.root / name

    def models(self) -> list[Path]:
        """Directories and .gguf files of targets."""
        return sorted(self.root.glob("model-*"))

    def model(self, name: str) -> Path:
        return self.root / f"model-{name}"

    def head(self, name: str) -> Path:
        return self.root / f"head-{name}"


def made(root: Path) -> Material:
    """The material in ``root``, made there unless it is."""
    if not (root / "done").exists():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        _make(Material(root))
        for path in root.rglob("*"):
            # safetensors writes files that only their owner may read
            path.chmod(0o755 if path.is_dir() else 0o644)
        (root / "done").touch()
    return Material(root)


def _make(material: Material) -> None:
    write_text_checkpoint(material.model("text"), max_position_embeddings=256)
    for family in FAMILIES:
        write_checkpoint(material.model(family), family)
    add_module(_copy(material.model("smollm"), material.model("module")), "deepseek")
    _shard(_copy(material.model("qwen3"), material.model("sharded")))
    write_whisper(material.model("whisper"))
    write_gguf(material.root / "model-q4.gguf", "smollm", "Q4_0")
    write_gguf(material.root / "model-f16.gguf", "qwen2_moe", "F16", add_sentencepiece)
    write_gguf(material.root / "model-gemma.gguf", "gemma2", "Q8_0", add_gemma_tokenizer)
    _make_heads(material)
    write_wav(material.root / "speech.wav", sound(1))
    (material.root / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in PROMPTS))
    (material.root / "prompt.txt").write_text("a b c\n")


def _make_heads(material: Material) -> None:
    target = replace(HeadSizes(), W=96)
    write_eagle1(material.head("eagle1"), target)
    write_eagle3(material.head("eagle3"), target)
    write_eagle3(material.head("eagle3_reduced"), HeadSizes())
    write_medusa(material.head("medusa"), target)
    write_head(material.head("medusa_vllm"), vllm_config(target), vllm_tensors(medusa_tensors(target)))
    write_hydra(material.head("hydra"))
    write_hydra(material.head("hydra_prefix"), prefix=True)
    write_dflash(material.head("dflash"), BlockSizes(), leaving=(0, 2, 3))
    write_dspark(material.head("dspark"), BlockSizes(rank=8, confidence=True), leaving=(0, 2, 3))
    write_module(material.head("mtp"), "speculators", SIZES.config(), mtp_tensors("speculators"))
    write_module(material.head("mtp_qwen"), "qwen", model_config("qwen3"), mtp_tensors("qwen", qk_norm=True))


def _copy(source: Path, to: Path) -> Path:
    shutil.copytree(source, to)
    return to


def _shard(directory: Path) -> None:
    """Two shards and an index in the place of one file."""
    tensors = load_file(directory / "model.safetensors")
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, own in shards.items():
        save_file({name: tensors[name] for name in own}, directory / shard)
    weight_map = {name: shard for shard, own in shards.items() for name in own}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (directory / "model.safetensors").unlink()
