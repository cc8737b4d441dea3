"""A head that an installed package brings is used for the target that it was trained for, and for no other."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec_sdk import installed
from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.chosen_weights import ChosenWeights
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.loading import BLOCK_HEADS, EAGLE_HEADS, HYDRA_HEADS, MEDUSA_HEADS
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.models import Models
from spec_sdk.model.target_identity import target_identity
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from tests.support.tiny_blocks import BlockSizes, write_dflash
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_heads import HeadSizes, write_eagle3
from tests.support.tiny_hydra import write_hydra
from tests.support.tiny_medusa import write_medusa

CPU = torch.device("cpu")
ANY = HeadChoices(target_layers=(1, 3, 5))


def models(target: Path, draft: str = "cut", layers: str | list[int] = "auto") -> Models:
    return Models(
        str(target),
        draft,
        layers,
        lambda source, dtype: TorchExecutor(load_decoder(source, CPU, dtype), Ops()),
        Ops(),
        CPU,
        torch.float32,
    )


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package ``brings_drafts`` without drafts, beside one that is gone and one of YAML."""
    place = tmp_path / "site" / "brings_drafts"
    place.mkdir(parents=True)
    (place / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(place.parent))
    monkeypatch.delitem(sys.modules, place.name, raising=False)
    names = {"drafts.gone": "not_there_any_more", "drafts.mine": "brings_drafts", "conf.mine": "spec_sdk.conf"}
    entries = [EntryPoint(name, module, installed.GROUP) for name, module in names.items()]
    monkeypatch.setattr(installed, "entries", lambda: entries)
    write_checkpoint(tmp_path / "target")
    return place


def facts(directory: Path, **values: str) -> None:
    (directory / "training.json").write_text(json.dumps(values), encoding="utf-8")


def test_the_head_that_was_trained_for_the_target(package: Path, tmp_path: Path) -> None:
    identity = target_identity(open_checkpoint(str(tmp_path / "target")))
    for seed, (name, target) in enumerate({"another": "0123456789abcdef", "fits": identity}.items()):
        facts(write_eagle3(package / name, HeadSizes(), seed), method="eagle3", target_identity=target)
    facts(write_medusa(package / "heads", HeadSizes()), method="medusa", target_identity=identity)
    facts(write_hydra(package / "hydra"), method="hydra", target_identity=identity)
    block = write_dflash(package / "block", BlockSizes(), leaving=(0, 2, 4))
    facts(block, method="dflash", target_identity=identity)
    beside = models(tmp_path / "target")
    assert beside.draft_head(None, EAGLE_HEADS, ANY).name == "fits, EAGLE-3 head"
    assert beside.draft_head(None, MEDUSA_HEADS).name == "heads, Medusa heads"
    assert beside.draft_head(None, HYDRA_HEADS).name == "hydra, Hydra heads"
    assert beside.draft_head(None, BLOCK_HEADS).name == "block, DFlash head"
    # a head that is named goes before it
    assert beside.draft_head(str(package / "another"), EAGLE_HEADS, ANY).name == "another, EAGLE-3 head"
    with pytest.raises(UserError, match=r"no installed package has a head of eagle for target; name one"):
        beside.draft_head(None, EAGLE_HEADS, HeadChoices("eagle"))


def test_no_head_was_trained_for_the_target(package: Path, tmp_path: Path) -> None:
    facts(write_eagle3(package / "another", HeadSizes()), method="eagle3", target_identity="0123456789abcdef")
    beside = models(tmp_path / "target")
    with pytest.raises(UserError, match=r"^drafter\.checkpoint: no installed package has a head of eagle or eagle3 "):
        beside.draft_head(None, EAGLE_HEADS, ANY)
    with pytest.raises(UserError, match=r"^drafter\.checkpoint: no installed package has a head of medusa for target"):
        beside.draft_head(None, MEDUSA_HEADS)


def test_the_draft_model_that_was_trained_for_the_target(package: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    identity = target_identity(open_checkpoint(str(target)))
    cut = "target, 2 of 5 layers"
    assert models(target, "auto", [0, 4]).draft().name == cut
    write_checkpoint(package / "another", num_hidden_layers=2)
    facts(package / "another", method="model", target_identity="0123456789abcdef")
    assert "layers" in models(target, "auto").draft().name
    write_checkpoint(package / "small", num_hidden_layers=2)
    facts(package / "small", method="model", target_identity=identity)
    trained = models(target, "auto")
    assert trained.draft().name == "small"
    assert trained.drafting_with("auto", [0, 4], {}).draft().name == cut
    assert models(target, "auto", [0, 4]).draft().name == cut and models(target).draft().name != "small"


def test_identity_outlives_rounding_and_not_training(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model")
    model = open_checkpoint(str(tmp_path / "model"))
    identity = target_identity(model)
    assert target_identity(ChosenWeights(model, "int4", lambda bits: True)) == identity
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}, file, {"format": "pt"})
    assert target_identity(open_checkpoint(str(tmp_path / "model"))) == identity
    tensors["model.layers.3.input_layernorm.weight"] *= 1.1
    save_file(tensors, file, {"format": "pt"})
    assert target_identity(open_checkpoint(str(tmp_path / "model"))) != identity
