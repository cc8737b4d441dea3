"""Prediction modules: the formulas in float64, in trees of a batch over several rounds, the namings, what is refused.

Legend: N pairs, M model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.opening import open_draft_head, open_own_module
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.tree import TreeBuilder
from tests.draft_heads.plain_formulas import PlainHead, rms_norm
from tests.draft_heads.test_formulas import Text, end_tensors, path_of, use_angles_of
from tests.support.draft_logits import roots_of, rows_of
from tests.support.tiny_heads import HeadSizes, load_head, random_ends, write_eagle1
from tests.support.tiny_mtp import NAMES, QWEN3_MOE, SIZES, load_module, model_config, mtp_tensors, write_module

ENDS = random_ends(SIZES, layers=10)
GEMMA = {"model_type": "gemma", "hidden_act": "gelu_pytorch_tanh"}
Made = tuple[str, dict[str, Any], dict[str, torch.Tensor]]
CASES: dict[str, Made] = {
    "DeepSeek's, of a Llama": ("deepseek", model_config(), mtp_tensors("deepseek")),
    "Qwen's, of a Qwen 3": ("qwen", model_config("qwen3"), mtp_tensors("qwen", qk_norm=True)),
    "Qwen's, of a mixture of experts": (
        "qwen",
        model_config("qwen3_moe", **QWEN3_MOE),
        mtp_tensors("qwen", qk_norm=True, experts=4),
    ),
    "DeepSeek's, an MLP behind a mixture of experts": (
        "deepseek",
        model_config("qwen3_moe", **QWEN3_MOE),
        mtp_tensors("deepseek", qk_norm=True),
    ),
    "MiMo's": ("mimo", model_config("mimo"), mtp_tensors("mimo", bias=True)),
    "speculators', of a Qwen 3": ("speculators", model_config("qwen3"), mtp_tensors("speculators", qk_norm=True)),
}


class PlainMtp(PlainHead):
    """The formulas once more, for one path at a time; the whole text is computed anew for every node."""

    def __init__(self, naming: str, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__(config, tensors, *end_tensors(ENDS), prefix=NAMES[naming]["layer"])
        self.naming, self.names = naming, NAMES[naming]

    def features(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        (last,) = states
        # the speculators library trains on what leaves the last layer, all others read what the output head reads
        return last if self.naming == "speculators" else rms_norm(last, self.target_norm_M, self.epsilon)

    def layer(self, tokens: Sequence[int], features_NM: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding_VM[list(tokens)].clone()
        if self.naming in ("deepseek", "mimo"):
            embedded[0] = 0
        pair = [
            self.norm(embedded, self.names["token_layernorm"]),
            self.norm(features_NM, self.names["hidden_layernorm"]),
        ]
        x = self.linear(torch.cat(pair[::-1] if self.naming == "mimo" else pair, -1), self.names["input_proj"])
        return self.after_attention(x, self.attention(self.norm(x, f"{self.prefix}.input_layernorm")))

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        p = f"{self.prefix}.mlp"
        if f"{p}.gate.weight" not in self.w:
            return super().mlp(x)
        rows = []
        for row in x:
            best = self.linear(row, f"{p}.gate").softmax(-1).topk(QWEN3_MOE["num_experts_per_tok"])
            of_experts = [self.expert(row, f"{p}.experts.{i}") for i in best.indices.tolist()]
            rows.append((best.values / best.values.sum()) @ torch.stack(of_experts))
        return torch.stack(rows)

    def expert(self, x: torch.Tensor, p: str) -> torch.Tensor:
        gate = self.linear(x, f"{p}.gate_proj")
        return self.linear(gate * torch.sigmoid(gate) * self.linear(x, f"{p}.up_proj"), f"{p}.down_proj")

    def fed_to_children(self, x_NM: torch.Tensor) -> torch.Tensor:
        return x_NM if self.naming == "deepseek" else self.norm(x_NM, self.names["final_layernorm"])

    def logits(self, x_NM: torch.Tensor) -> torch.Tensor:
        return self.norm(x_NM, self.names["final_layernorm"]) @ self.target_head_VM.T


def refusal(directory: Path, sizes: HeadSizes = SIZES) -> str:
    with pytest.raises(UserError) as caught:
        load_module(directory, random_ends(sizes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("case", CASES)
def test_trees_of_a_batch_over_several_rounds(case: str, tmp_path: Path) -> None:
    naming, config, tensors = CASES[case]
    plain = PlainMtp(naming, config, tensors)
    # a mixture's router computes in float32
    rounding = 1e-5 if any(".experts." in name for name in tensors) else 1e-9
    session = DraftHeadSession(load_module(write_module(tmp_path, naming, config, tensors), ENDS))
    use_angles_of(plain, session.head)
    # what leaves the last block of ten
    assert session.head.taps == (10,)
    texts = [Text(SIZES, seed) for seed in range(2)]
    session.feed_features([1], [texts[1].tokens[1:2]], [session.head.features(texts[1].hidden(0, 1))])
    texts[1].fed = 1
    texts[1].tokens += [texts[1].token() for _ in range(5)]
    for _ in range(2):
        pairs = [text.unfed() for text in texts]
        features = [session.head.features(hidden) for _, hidden in pairs]
        roots = roots_of(session.feed_pairs(range(2), [tokens for tokens, _ in pairs], features))
        trees, logits = [TreeBuilder(text.tokens[-1]) for text in texts], [[root_V] for root_V in roots]
        for _ in range(2):
            new = [text.level(tree) for text, tree in zip(texts, trees, strict=True)]
            for slot, level in enumerate(rows_of(session.grow(range(2), trees, new))):
                logits[slot] += level.unbind()
        for text, tree, of_nodes in zip(texts, trees, logits, strict=True):
            states = [text.states[10, : len(text.tokens) - 1]]
            for node in range(tree.size):
                expected_V = plain.after_path(text.tokens, states, path_of(tree, node))
                torch.testing.assert_close(of_nodes[node], expected_V, atol=rounding, rtol=rounding)
            text.tokens += [*path_of(tree, text.choose.randrange(tree.size)), text.token()]


def logits_of(directory: Path, **choices: Any) -> torch.Tensor:
    session = DraftHeadSession(load_module(directory, ENDS, **choices))
    states = torch.randn(4, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return roots_of(session.feed_pairs([0], [[7, 8, 9, 10]], [session.head.features({10: states})]))[0]


def test_which_state_is_read_can_be_said(tmp_path: Path) -> None:
    """The namings differ in nothing else here: so do the logits."""
    qwen = write_module(tmp_path / "qwen", *CASES["Qwen's, of a Qwen 3"])
    library = write_module(tmp_path / "library", *CASES["speculators', of a Qwen 3"])
    after, before = logits_of(qwen), logits_of(library)
    assert (after - before).abs().max() > 1e-2
    assert torch.equal(logits_of(qwen, state="before_norm"), before)
    assert torch.equal(logits_of(library, state="after_norm"), after)
    assert torch.equal(logits_of(library, state="before_norm"), before)


def test_namings_are_told_apart(tmp_path: Path) -> None:
    titles = {"deepseek": "DeepSeek MTP", "qwen": "Qwen MTP", "mimo": "MiMo MTP", "speculators": "speculators mtp"}
    for case, (naming, config, tensors) in CASES.items():
        published = open_draft_head(str(write_module(tmp_path / case[:12], naming, config, tensors)))
        assert published.layout == titles[naming]
        assert published.target == ("org/tiny" if naming == "speculators" else None)


def test_copies_of_the_targets_ends_are_not_held_twice(tmp_path: Path) -> None:
    """DeepSeek's files repeat embedding and output head; a module that has others keeps its own."""
    naming, config, tensors = CASES["DeepSeek's, of a Llama"]
    same, other = ENDS.embedding.weight_VM.float(), torch.randn(96, 48)
    model = {"model.embed_tokens.weight": same}
    for name, own_VM in (("same", same), ("other", other)):
        copies = {f"model.layers.5.{end}.weight": own_VM.clone() for end in ("embed_tokens", "shared_head.head")}
        # the output head is tied to the embedding
        head = load_module(write_module(tmp_path / name, naming, config, {**tensors, **model, **copies}), ENDS).head
        assert (head.embedding is ENDS.embedding) == (head.output_head is ENDS.output_head) == (name == "same")
    assert torch.equal(head.output_head.weight_OI, other.double())


def test_everything_but_the_module_is_left_alone(tmp_path: Path) -> None:
    naming, config, tensors = CASES["DeepSeek's, of a Llama"]
    others = {"model.layers.4.mlp.up_proj.weight": torch.zeros(3), "lm_head.weight": torch.zeros(2).int()}
    found = logits_of(write_module(tmp_path / "a", naming, config, {**tensors, **others}))
    assert torch.equal(found, logits_of(write_module(tmp_path / "b", naming, config, tensors)))


@pytest.mark.parametrize(
    ("case", "config", "change", "message"),
    [
        ("MiMo's", {"num_nextn_predict_layers": 3}, {}, "has 1 prediction modules, and num_nextn_predict_layers is 3"),
        ("MiMo's", {}, {"model.mtp_layers.1.input_proj.weight": torch.zeros(1)}, "has 2 prediction modules, and num"),
        ("DeepSeek's, of a Llama", {"num_hidden_layers": 6}, {}, "has 0 prediction modules"),
        ("DeepSeek's, of a Llama", {"model_type": "longcat_flash"}, {}, "module of a 'longcat_flash' model, which"),
        ("Qwen's, of a Qwen 3", {"model_type": "longcat_flash"}, {}, "module of a 'longcat_flash' model, wh"),
        ("speculators', of a Qwen 3", {"model_type": "longcat_flash"}, {}, "module of a 'longcat_flash' model"),
        ("DeepSeek's, of a Llama", GEMMA, {}, "prediction modules of 'gemma' models are not known, and none is"),
        ("Qwen's, of a Qwen 3", {}, {"mtp.norm.weight": None}, "'final_layernorm.weight' is missing"),
        ("Qwen's, of a Qwen 3", {}, {"mtp.pre_fc_norm.weight": torch.zeros(48)}, "'mtp.pre_fc_norm.weight' is none"),
        ("Qwen's, of a Qwen 3", {}, {"mtp.fc.weight": torch.zeros(48, 48)}, "[48, 48], but the config asks for [48"),
        ("MiMo's", {}, {"model.mtp_layers.0.self_attn.q_proj.bias": None}, "'layers.0.self_attn.q_proj.bias' is mi"),
        ("MiMo's", {}, {"model.mtp_layers.0.mlp.up_proj.weight": torch.zeros(80, 48).int()}, "stored as I32"),
    ],
)  # fmt: skip
def test_modules_that_are_not_read(
    case: str, config: dict[str, Any], change: dict[str, torch.Tensor | None], message: str, tmp_path: Path
) -> None:
    naming, said, tensors = CASES[case]
    kept = {name: tensor for name, tensor in {**tensors, **change}.items() if tensor is not None}
    assert message in refusal(write_module(tmp_path, naming, {**said, **config}, kept))


def test_another_target(tmp_path: Path) -> None:
    directory = write_module(tmp_path, *CASES["MiMo's"])
    assert "target of hidden size 48, and tiny has 64" in refusal(directory, replace(SIZES, S=64))
    assert "target of vocabulary 96, and tiny has 100" in refusal(directory, replace(SIZES, V=100))


def test_heads_of_another_method(tmp_path: Path) -> None:
    module, eagle = write_module(tmp_path / "mtp", *CASES["MiMo's"]), write_eagle1(tmp_path / "eagle", HeadSizes())
    assert "is a head of eagle (EAGLE-1/2 layout), and this drafter needs a prediction module" in refusal(eagle)
    with pytest.raises(
        UserError, match=r"is a head of mtp \(MiMo MTP layout\), and this drafter needs a decoder layer"
    ):
        load_head(module, ENDS)
    with pytest.raises(UserError, match=r"eagle is asked for, and .* is a head of mtp"):
        load_head(module, ENDS, method="eagle")
    with pytest.raises(UserError, match=r"is not given, and tiny has no prediction module \(MTP\) among its tensors"):
        open_own_module(eagle, "tiny")
