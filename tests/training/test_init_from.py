"""``task.init_from``: a training that begins with what an earlier one made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.text_checkpoints import write_text_checkpoint
from tests.training.conftest import HEAD, QUICK

MORE = ("task.data=data", "task.steps=2", "task.warmup=0", "task.evaluate_every=2", "task.learning_rate=1e-9")
"""A training that changes next to nothing."""
MODEL = tuple(option for option in QUICK if not option.startswith("task.layers"))


def first_one(cli: Callable[..., Any], *options: str) -> None:
    """Train ``draft`` on ``data``."""
    assert cli(*options, "task.data=data", "task.learning_rate=0.01", "task.stored=float32").status == 0


def ends(place: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first and the last evaluation."""
    curve = json.loads((place / name / "training.json").read_text())["curve"]
    return curve[0], curve[-1]


@pytest.mark.parametrize("options", [HEAD, (*MODEL, "task.layers=2")], ids=["head", "model"])
def test_it_begins_where_the_other_one_ended(options: tuple[str, ...], cli: Callable[..., Any], place: Path) -> None:
    first_one(cli, *options)
    further = [option for option in options if not option.startswith(("task.layers", "task.taps"))]
    done = cli(*further, *MORE, "task.output=further", "task.init_from=draft", "task.stored=float32")
    assert done.status == 0, done.err
    assert "begins as draft" in done.err
    (untrained, trained), (begun, _) = ends(place, "draft"), ends(place, "further")
    assert begun["loss"] == pytest.approx(trained["loss"], rel=1e-5) and trained["loss"] < 0.99 * untrained["loss"]
    old, new = (load_file(place / name / "model.safetensors") for name in ("draft", "further"))
    assert old.keys() == new.keys()
    for name, tensor in old.items():
        assert torch.allclose(new[name], tensor, atol=1e-6) if tensor.is_floating_point() else new[name].equal(tensor)
    configs = [json.loads((place / name / "config.json").read_text()) for name in ("draft", "further")]
    assert configs[0] == configs[1]
    card = (place / "further" / "README.md").read_text()
    assert "| began as | `draft` |" in card and "| as it began |" in card and "begin as those of `draft`" in card
    # a killed run goes on with what it began as, and with nothing else
    shutil.copytree(place / "draft", place / "other")
    weights = {name: tensor + 0.5 if tensor.is_floating_point() else tensor for name, tensor in old.items()}
    save_file(weights, place / "other" / "model.safetensors", {"format": "pt"})
    if options is HEAD:
        # output rows are compared with the target's
        weights["lm_head.weight"] = old["lm_head.weight"]
        save_file(weights, place / "other" / "model.safetensors", {"format": "pt"})
    other = cli(*further, *MORE, "task.output=further", "task.init_from=other", "task.stored=float32")
    assert other.status == 2 and "task.init_from: the training kept in" in other.err


def test_a_draft_model_in_few_bits_and_one_with_all_its_weights(cli: Callable[..., Any], place: Path) -> None:
    """Its own embedding stays its own, in the file too."""
    asked = (*MODEL, "task.layers=2", "task.data=data", "task.steps=2", "task.warmup=0")
    assert cli(*asked, "task.stored=int8", "task.output=small").status == 0
    assert cli(*asked, "task.whole=true", "task.stored=float32", "task.output=whole").status == 0
    stored = {**load_file(place / "whole" / "model.safetensors")}
    stored["model.embed_tokens.weight"] = stored["model.embed_tokens.weight"] + 1
    save_file(stored, place / "whole" / "model.safetensors", {"format": "pt"})
    for name in ("small", "whole"):
        further = (*MODEL, *MORE, f"task.init_from={name}", f"task.output={name}-2", "task.stored=float32")
        assert cli(*further).status == 0
    small, whole = (load_file(place / f"{name}-2" / "model.safetensors") for name in ("small", "whole"))
    assert "model.embed_tokens.weight" not in small
    assert torch.equal(whole["model.embed_tokens.weight"], stored["model.embed_tokens.weight"])
    both = json.loads((place / "small-2" / "config.json").read_text())["weights_of_target"]
    assert both and "weights_of_target" not in json.loads((place / "whole-2" / "config.json").read_text())
    refused = cli(*MODEL, *MORE, "task.init_from=whole", "task.output=third", "task.whole=false")
    assert refused.status == 2 and "task.whole: whole has an embedding of its own" in refused.err


def test_heads_that_cannot_be_gone_on_from(cli: Callable[..., Any], place: Path) -> None:
    first_one(cli, *HEAD)
    further = [option for option in HEAD if not option.startswith("task.taps")]
    stored = load_file(place / "draft" / "model.safetensors")
    config = json.loads((place / "draft" / "config.json").read_text())
    layer = config["transformer_layer_config"]

    def refused(tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> str:
        save_file(tensors, place / "draft" / "model.safetensors", {"format": "pt"})
        (place / "draft" / "config.json").write_text(json.dumps(values))
        done = cli(*further, "task.init_from=draft", "task.output=further")
        assert done.status == 2 and "Traceback" not in done.err and "data:" not in done.err
        return str(done.err)

    rows = {**stored, "lm_head.weight": stored["lm_head.weight"] + 0.5}
    assert "draft: its lm_head is not the target's, and task=train_draft does not train it" in refused(rows, config)
    theta = {**config, "transformer_layer_config": {**layer, "rope_theta": 5.0, "rope_parameters": None}}
    assert "task.init_from: draft: has rope_theta 5.0, and a head of this target has 100000.0" in refused(stored, theta)
    eps = {**config, "transformer_layer_config": {**layer, "rms_norm_eps": 0.5}}
    assert "task.init_from: draft: has rms_norm_eps 0.5, and the target has" in refused(stored, eps)
    scaled = {**config, "norm_before_residual": True}
    assert "task.init_from: draft: has norms or scales that task=train_draft does not train" in refused(stored, scaled)
    assert (
        "task.init_from: nowhere: no such directory"
        in cli(*further, *MORE, "task.init_from=nowhere", "task.output=further").err
    )


def test_a_smaller_head_keeps_its_sizes(cli: Callable[..., Any], place: Path) -> None:
    assert cli(*HEAD, "task.data=data", "task.mlp_size=32", "task.kv_heads=1", "task.stored=float32").status == 0
    further = [option for option in HEAD if not option.startswith("task.taps")]
    done = cli(*further, *MORE, "task.init_from=draft", "task.output=further", "task.stored=float32")
    assert done.status == 0, done.err
    old, new = (load_file(place / name / "model.safetensors") for name in ("draft", "further"))
    assert {name: tensor.shape for name, tensor in old.items()} == {name: tensor.shape for name, tensor in new.items()}
    # through a link too the output would be written over it
    (place / "link").symlink_to(place / "draft")
    again = cli(*further, "task.init_from=link", "task.work=elsewhere")
    assert again.status == 2 and "task.init_from: link is task.output too" in again.err


def test_a_model_that_lacks_only_a_part(cli: Callable[..., Any], place: Path) -> None:
    """What the target would lend, and what would be written, is all or nothing."""
    (place / "part").mkdir()
    write_text_checkpoint(place / "part", tie_word_embeddings=False)
    config = json.loads((place / "part" / "config.json").read_text())
    (place / "part" / "config.json").write_text(json.dumps({**config, "weights_of_target": ["head"]}))
    tensors = load_file(place / "part" / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, place / "part" / "model.safetensors", {"format": "pt"})
    done = cli(*MODEL, "task.init_from=part")
    assert done.status == 2 and "task.init_from: part takes only lm_head.weight from its target" in done.err, done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            (*MODEL, "task.init_from=model", "task.vocabulary=200"),
            "task.vocabulary: model has an output head of its own",
        ),
        ((*QUICK, "task.init_from=other"), "task.layers: what task.init_from names has its own; leave it out"),
        ((*HEAD, "task.init_from=other"), "task.taps: what task.init_from names has its own; leave it out"),
        ((*MODEL, "task.init_from=./draft"), "task.init_from: ./draft is task.output too"),
        ((*MODEL, "task.init_from=nowhere"), "task.init_from: model 'nowhere': no such file or directory"),
        ((*MODEL, "task.init_from=model", "task.whole=false"), "task.whole: model has an embedding of its own"),
    ],
)
def test_refusals(cli: Callable[..., Any], place: Path, options: tuple[str, ...], message: str) -> None:
    done = cli(*options)
    assert done.status == 2 and "Traceback" not in done.err
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0], done.err
    assert not (place / "draft").exists()
