"""P-EAGLE heads compute what the formulas say, in every variant; what is recognised of their files, and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.opening import open_draft_head
from spec_sdk.model.draft_heads.peagle import PEagleHead
from tests.draft_heads.plain_formulas import frequencies
from tests.draft_heads.plain_peagle import PlainPEagle
from tests.draft_heads.test_formulas import LLAMA3, ROUNDING, Text, end_tensors
from tests.support.tiny_heads import (
    HeadSizes,
    _Random,
    eagle1_tensors,
    eagle3_tensors,
    load_head,
    random_ends,
    speculators_config,
    write_eagle3,
    write_head,
)
from tests.support.tiny_peagle import MASK, peagle_config, peagle_session, peagle_tensors, write_peagle

SIZES = HeadSizes()
VARIANTS: dict[str, tuple[HeadSizes, int, dict[str, Any]]] = {
    "two layers": (SIZES, 2, {}),
    "one layer": (SIZES, 1, {}),
    "four layers and the whole vocabulary": (replace(SIZES, W=96), 4, {}),
    "narrower than its target": (replace(SIZES, M=32, S=48, heads=4, head_dim=8), 2, {}),
    "norm before residual": (SIZES, 2, {"norm_before_residual": True}),
    "norm before fc": (SIZES, 2, {"norm_before_fc": True}),
    "a norm per state": (SIZES, 2, {"fc_norm": True}),
    "scaled logits": (SIZES, 1, {"logit_scale": 0.3}),
    "linear positions": (SIZES, 2, {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 5e5}),
    "Llama 3's positions": (SIZES, 2, {"rope_scaling": LLAMA3}),
    "biases and norms of Q and K": (SIZES, 2, {"attention_bias": True}),
}


def written(name: str, directory: Path) -> tuple[HeadSizes, PlainPEagle]:
    sizes, layers, options = VARIANTS[name]
    tensors, more = peagle_tensors(sizes, layers, seed=3), _Random(11)
    if options.get("norm_before_fc"):
        tensors["input_norm.weight"] = more.gain(sizes.taps * sizes.S)
    if options.get("fc_norm"):
        tensors |= {f"fc_norm.{i}.weight": more.gain(sizes.S) for i in range(sizes.taps)}
    if options.get("attention_bias"):
        for p in ("midlayer.self_attn", *(f"layers.{i}.self_attn" for i in range(1, layers))):
            tensors |= {f"{p}.{part}_proj.bias": more.bias(len(tensors[f"{p}.{part}_proj.weight"])) for part in "qkvo"}
            tensors |= {f"{p}.{part}_norm.weight": more.gain(sizes.head_dim) for part in "qk"}
    config = peagle_config(sizes, layers, **options)
    write_head(directory, config, tensors)
    return sizes, PlainPEagle(config, tensors, *end_tensors(random_ends(sizes)), prefix="midlayer")


@pytest.mark.parametrize("name", VARIANTS)
def test_positions_ahead_of_a_batch_over_several_cycles(name: str, tmp_path: Path) -> None:
    sizes, plain = written(name, tmp_path)
    session = peagle_session(tmp_path, random_ends(sizes))
    # angles in float64: the package's are in float32
    (table,), angles = session.head._rotary, frequencies(plain.config)
    torch.testing.assert_close(table._frequency, angles.float(), atol=1e-7, rtol=1e-6)
    table._frequency = angles
    taps, texts = session.head.taps, [Text(sizes, seed) for seed in range(3)]
    # a prompt may be fed in parts
    texts[2].tokens += [texts[2].token() for _ in range(12)]
    session.feed_features([2], [texts[2].tokens[1:8]], [session.head.features(texts[2].hidden(0, 7))])
    texts[2].fed = 7
    for positions in (5, 1, 3):
        pairs = [text.unfed() for text in texts]
        features = [session.head.features(hidden) for _, hidden in pairs]
        normed_RPM = session.ahead(range(3), [tokens for tokens, _ in pairs], features, positions)
        for slot, (text, normed_PM) in enumerate(zip(texts, normed_RPM, strict=True)):
            assert session.length(slot) == len(text.tokens) - 1
            hidden = text.hidden(0, len(text.tokens) - 1)
            expected_PV = plain.ahead(text.tokens, [hidden[tap] for tap in taps], positions)
            torch.testing.assert_close(session.head.block_logits(normed_PM), expected_PV, atol=ROUNDING, rtol=ROUNDING)
            text.tokens += [text.token() for _ in range(text.choose.randint(1, positions))]


def test_the_comparison_tells_variants_apart(tmp_path: Path) -> None:
    """So that nothing is passed over in both."""
    _, plain = written("two layers", tmp_path)
    tokens, states = [5, 6, 7, 8, 9], list(torch.randn(3, 4, 48, dtype=torch.float64))
    found = plain.ahead(tokens, states, 4)
    known = found[0] > -torch.inf
    assert (plain.ahead(tokens, states, 2) - found[:2])[:, known].abs().max() < ROUNDING
    changes: list[tuple[str, Any]] = [
        ("mask", MASK + 1),
        ("w", {**plain.w, "mask_hidden": plain.w["mask_hidden"].roll(48)}),
        ("config", {**plain.config, "num_hidden_layers": 1}),
    ]
    for key, value in changes:
        other = written("two layers", tmp_path)[1]
        setattr(other, key, value)
        assert (other.ahead(tokens, states, 4) - found)[1:, known].abs().amax(-1).min() > 1e-2, key


def test_all_spellings_are_one(tmp_path: Path) -> None:
    """Of tensors and of the mask token, in plain files and in those of the speculators library."""
    tensors = peagle_tensors(SIZES, prefix="layers.0", axes=3)
    body = SIZES.config(num_hidden_layers=2)
    library = speculators_config(
        SIZES,
        "peagle",
        body,
        draft_vocab_size=SIZES.W,
        mask_token_id=MASK,
        eagle_aux_hidden_state_layer_ids=[2, 5, 7],
    )
    spellings = {
        "vllm": write_peagle(tmp_path / "a", SIZES, pard_token=MASK),
        "forge": write_head(
            tmp_path / "b",
            peagle_config(SIZES, ptd_token_id=None, mask_token_id=MASK, architectures=["PEagleDraftModel"]),
            tensors,
        ),
        "library": write_head(tmp_path / "c", library, tensors),
        "one axis": write_head(tmp_path / "d", peagle_config(SIZES), peagle_tensors(SIZES, axes=1)),
    }
    found, hidden = [], {tap: torch.randn(4, 48, dtype=torch.float64) for tap in (2, 5, 7)}
    for name, directory in spellings.items():
        session = peagle_session(directory, random_ends(SIZES))
        assert isinstance(session.head, PEagleHead) and session.head.drafts == (3 if name == "library" else None)
        normed = session.ahead([0], [[7, 8, 9, 10]], [session.head.features(hidden)], 4)
        found.append(session.head.block_logits(normed))
        published = open_draft_head(str(directory))
        assert published.layout == ("speculators peagle" if name == "library" else "P-EAGLE")
    assert all(torch.equal(logits, found[0]) for logits in found)


def test_how_many_tokens_it_was_trained_for(tmp_path: Path) -> None:
    def drafts(**config: Any) -> int | None:
        return peagle_session(write_peagle(tmp_path, SIZES, **config), random_ends(SIZES)).head.drafts

    assert drafts() is None and drafts(num_depths=8) == 8
    proposal = {"proposal_methods": [{"speculative_tokens": 5}]}
    assert drafts(speculators_config=proposal) == 5 and drafts(num_depths=8, speculators_config=proposal) == 8


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"ptd_token_id": None}, "no mask_token_id or pard_token or ptd_token_id"),
        ({"mask_token_id": 4}, "mask_token_id is 4, and ptd_token_id is 3"),
        ({"ptd_token_id": 96}, "ptd_token_id is 96, and there are 96 tokens"),
        ({"ptd_token_id": "3"}, "ptd_token_id is '3', and there are 96 tokens"),
        ({"num_hidden_layers": 1}, "num_hidden_layers is 1, and there are tensors of 2 layers"),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, and there are tensors of 2 layers"),
        ({"num_depths": 0}, "num_depths is 0, not a positive number"),
        (
            {"eagle_aux_hidden_state_layer_ids": [2, 5]},
            r"fc\.weight. has shape \[48, 144\], but the config asks for \[48, 96\]",
        ),
        ({"target_hidden_size": 24}, "made for a target of hidden size 24, and tiny has 48"),
    ],
)
def test_contradictions(config: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=expected) as caught:
        peagle_session(write_peagle(tmp_path, SIZES, **config), random_ends(SIZES))
    assert "\n" not in str(caught.value)


def test_files_of_two_minds(tmp_path: Path) -> None:
    """What config.json calls a P-EAGLE head has a mask state, and what it calls something else has none."""
    tensors = {"EAGLE-3": eagle3_tensors(SIZES), "P-EAGLE": peagle_tensors(SIZES, 1)}
    for name, config in (("a", {"parallel_drafting": True}), ("b", {"architectures": ["PEagleDraftModel"]})):
        with pytest.raises(UserError, match="mask_hidden"):
            head = write_head(tmp_path / name, peagle_config(SIZES, 1, **config), tensors["EAGLE-3"])
            peagle_session(head, random_ends(SIZES))
    older = write_head(
        tmp_path / "older", SIZES.config(architectures=["PEagleDraftModel"]), eagle1_tensors(SIZES, bias=False)
    )
    with pytest.raises(UserError, match=r"\(PEagleDraftModel\), and the tensors are those of an EAGLE-1 head"):
        peagle_session(older, random_ends(SIZES))
    library = speculators_config(SIZES, "eagle3", draft_vocab_size=SIZES.W)
    with pytest.raises(UserError, match="is 'eagle3', and there is a tensor 'mask_hidden', as of 'peagle'"):
        load_head(write_head(tmp_path / "c", library, tensors["P-EAGLE"]), random_ends(SIZES))
    with pytest.raises(UserError, match=r"is a head of peagle \(P-EAGLE layout\), and this drafter needs a decoder la"):
        load_head(write_peagle(tmp_path / "d", SIZES), random_ends(SIZES))
    with pytest.raises(UserError, match=r"is a head of eagle3 \(EAGLE-3 layout\), and this drafter needs one of P-EAG"):
        peagle_session(write_eagle3(tmp_path / "e", SIZES), random_ends(SIZES))
