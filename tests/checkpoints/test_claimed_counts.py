"""Files that say they have a million times what they hold: refused before anything is made for each of it."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.draft_heads.opening import open_draft_head
from tests.checkpoints.gguf_files import write_gguf
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_heads import HeadSizes, write_eagle3
from tests.support.tiny_hydra import write_hydra
from tests.support.tiny_medusa import write_medusa
from tests.support.tiny_whisper import write_whisper

MANY = 10**9


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """A list of a billion numbers would not fit."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (2 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def say(directory: Path, **values: Any) -> Path:
    """Change config.json."""
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return directory


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("smollm", {"num_hidden_layers": MANY}),
        ("gemma3", {"num_hidden_layers": MANY}),
        ("smollm", {"num_hidden_layers": 1e18}),
        ("mixtral", {"num_local_experts": MANY}),
        ("qwen3_moe", {"num_experts": 10**5}),
        ("qwen2_moe", {"num_hidden_layers": MANY, "num_experts": MANY}),
    ],
)
def test_more_layers_or_experts_than_tensors(tmp_path: Path, family: str, said: dict[str, Any]) -> None:
    write_checkpoint(tmp_path, family)
    with pytest.raises(
        UserError, match=rf"config.json: {next(iter(said))[:8]}.* and the files hold \d+ (tensors|numbers)"
    ):
        open_checkpoint(str(say(tmp_path, **said)))


@pytest.mark.parametrize("key", ["encoder_layers", "decoder_layers"])
def test_more_layers_of_whisper(tmp_path: Path, key: str) -> None:
    write_whisper(tmp_path)
    with pytest.raises(UserError, match=f"{key} is {MANY}, and the files hold"):
        open_checkpoint(str(say(tmp_path, **{key: MANY})))


@pytest.mark.parametrize("key", ["block_count", "expert_count"])
def test_more_of_a_gguf_file(tmp_path: Path, key: str) -> None:
    def claim(writer: Any) -> None:
        writer.kv_data[0][f"qwen2moe.{key}"].value = MANY

    write_gguf(tmp_path / "m.gguf", "qwen2_moe", customize=claim)
    with pytest.raises(UserError, match=f"qwen2moe.{key} is {MANY}.* and the files hold"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_more_layers_of_a_head(tmp_path: Path) -> None:
    head = say(write_eagle3(tmp_path / "eagle3", HeadSizes()), num_hidden_layers=MANY)
    with pytest.raises(UserError, match=f"num_hidden_layers is {MANY}, and the files hold"):
        open_draft_head(str(head))


def test_a_head_of_a_great_number(tmp_path: Path) -> None:
    medusa = write_medusa(tmp_path / "medusa", replace(HeadSizes(), W=96))
    hydra = write_hydra(tmp_path / "hydra")
    for path, before in ((medusa / "medusa_lm_head.safetensors", "2.0."), (hydra / "model.safetensors", "mlp.2.")):
        tensors = load_file(path)
        after = before.replace("2", str(MANY), 1)
        save_file({name.replace(before, after, 1): tensor for name, tensor in tensors.items()}, path)
    for head in (medusa, hydra):
        with pytest.raises(UserError, match=f"has head {MANY}, and 3 heads are stored"):
            open_draft_head(str(head))


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), -(2**70)])
def test_numbers_beyond_any_size(tmp_path: Path, value: float) -> None:
    write_checkpoint(tmp_path)
    with pytest.raises(UserError, match="config.json: hidden_size is "):
        open_checkpoint(str(say(tmp_path, hidden_size=value)))
