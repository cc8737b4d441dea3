"""What vLLM's own reading makes of an export in the format of speculators: its config modules alone, out of its wheel.

pip download --no-deps vllm==0.33.0 && unzip -q vllm-*.whl 'vllm/transformers_utils/*' -d vllm-wheel
VLLM_WHEEL=$PWD/vllm-wheel python -m pytest tests/export/test_vllm_reading.py
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.export.exports import TAPPED, exported
from tests.export.test_round_trips import normed
from tests.support.tiny_blocks import MASK, BlockSizes, write_dflash, write_dspark
from tests.support.tiny_heads import HeadSizes, write_eagle3
from tests.support.tiny_peagle import write_peagle

WHEEL = os.environ.get("VLLM_WHEEL")
pytestmark = pytest.mark.skipif(not WHEEL, reason="needs an unpacked wheel of vLLM (VLLM_WHEEL)")
SIZES, BLOCKS = HeadSizes(), BlockSizes()
_ROOM = "vllm.transformers_utils"
_CONFIGS = f"{_ROOM}.configs.speculators"


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its class of configurations, beside a stand-in for the one helper that it imports."""
    for name in ("vllm", _ROOM, f"{_ROOM}.configs", _CONFIGS):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    helper: Any = ModuleType(f"{_ROOM}.utils")
    helper.without_trust_remote_code = lambda options: options
    monkeypatch.setitem(sys.modules, helper.__name__, helper)
    found: Any = None
    for part in ("algos", "base"):
        name = f"{_CONFIGS}.{part}"
        spec = importlib.util.spec_from_file_location(name, Path(str(WHEEL), *name.split(".")).with_suffix(".py"))
        assert spec is not None and spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, found)
        spec.loader.exec_module(found)
    return found.SpeculatorsConfig


def read(reader: Any, directory: Path) -> tuple[Any, dict[str, Any]]:
    """The draft's configuration, and what the server is told of it."""
    values = json.loads((directory / "config.json").read_text())
    return reader.from_pretrained(str(directory)), reader.extract_vllm_speculative_config(values)


def test_eagle3(reader: Any, target: Path, tmp_path: Path) -> None:
    source = write_eagle3(tmp_path / "source", SIZES, **TAPPED)
    config, told = read(reader, exported(source, target, tmp_path / "out", depth=2).directory)
    assert told == {"method": "eagle3", "num_speculative_tokens": 2}
    assert config.architectures == ["Eagle3LlamaForCausalLM"]
    assert config.eagle_aux_hidden_state_layer_ids == [1, 4, 9]
    # it takes the other for granted where a file does not say
    assert config.norm_before_residual is False and config.draft_vocab_size == 40
    config, _ = read(reader, exported(normed(tmp_path / "n", False), target, tmp_path / "normed").directory)
    assert config.norm_before_residual and config.norm_output and config.fc_norm and not config.norm_before_fc


def test_peagle(reader: Any, target: Path, tmp_path: Path) -> None:
    source = write_peagle(tmp_path / "source", SIZES, **TAPPED)
    config, told = read(reader, exported(source, target, tmp_path / "out", depth=4).directory)
    assert told == {"method": "eagle3", "parallel_drafting": True, "num_speculative_tokens": 4}
    assert config.pard_token == MASK and config.num_hidden_layers == 2


def test_blocks(reader: Any, target: Path, tmp_path: Path) -> None:
    source = write_dflash(tmp_path / "dflash", BLOCKS)
    config, told = read(reader, exported(source, target, tmp_path / "a").directory)
    assert told == {"method": "dflash", "num_speculative_tokens": 4} and config.architectures == ["DFlashDraftModel"]
    assert config.dflash_config == {
        "mask_token_id": MASK,
        "target_layer_ids": [0, 3, 6],
        "sample_from_anchor": False,
        "causal": False,
    }
    source = write_dspark(tmp_path / "dspark", replace(BLOCKS, W=40, rank=6, confidence=True))
    config, told = read(reader, exported(source, target, tmp_path / "b").directory)
    assert told == {"method": "dspark", "num_speculative_tokens": 5} and config.architectures == ["Qwen3DSparkModel"]
    assert config.target_layer_ids == [0, 3, 6] and config.sample_from_anchor and not config.dspark_bonus_anchor
    assert (config.markov_rank, config.markov_head_type, config.block_size) == (6, "vanilla", 5)
