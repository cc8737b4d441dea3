"""Drafters inside vLLM and SGLang: docs/serving_plugin beside stand-ins that have the signatures of both programs.

The stand-ins follow the source of vLLM 0.33 (``custom_class_proposer``, the call in ``gpu_model_runner``) and of SGLang
0.5.23 (``spec_info``, ``spec_registry``, ``ngram_worker``). Neither program is installed, and nothing here ran in one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from enum import Enum, auto
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_serving.hosted_drafter import HostedDrafter, drafter_options
from spec_sdk_serving.sglang_plugin import padded, register
from spec_sdk_serving.vllm_proposer import Proposer, chain_of

VOCABULARY = 50
TEXTS = ([5, 6, 7, 8, 9, 5, 6], [21, 22, 23, 21, 22], [40, 41, 42, 43, 44, 45, 40, 41])


def target(tokens: list[int]) -> int:
    """The greedy choice of a target that goes round in circles, and now and then leaves them."""
    length = len(tokens)
    if length % 11 == 0:
        return (tokens[-1] * 7 + length) % VOCABULARY
    earlier = [i for i in range(length - 1) if tokens[i] == tokens[-1]]
    return tokens[earlier[-1] + 1] if earlier else (tokens[-1] + 1) % VOCABULARY


def plain(tokens: list[int], new: int) -> list[int]:
    text = list(tokens)
    for _ in range(new):
        text.append(target(text))
    return text


class VllmRunner:
    """The V1 runner's part of a step: rows of tokens, what was sampled, and the call."""

    def __init__(self, path: str, depth: int, longest: int = 200) -> None:
        config = SimpleNamespace(
            speculative_config=SimpleNamespace(model=path, num_speculative_tokens=depth, method="custom_class"),
            model_config=SimpleNamespace(max_model_len=longest),
        )
        module, _, name = path.rpartition(".")
        self.drafter = getattr(importlib.import_module(module), name)(config)
        assert callable(self.drafter.propose)
        self.token_ids_cpu = np.zeros((8, longest), dtype=np.int32)
        self.num_tokens_no_spec = np.zeros(8, dtype=np.int32)

    def drafts(self, texts: list[list[int]], sampled: list[list[int]]) -> list[list[int]]:
        for row, text in enumerate(texts):
            self.token_ids_cpu[row, : len(text)] = text
            self.num_tokens_no_spec[row] = len(text)
        drafts: list[list[int]] = self.drafter.propose(
            sampled, self.num_tokens_no_spec, self.token_ids_cpu, slot_mappings=None
        )
        assert len(drafts) == len(texts)
        return drafts


def verified(text: list[int], draft: list[int]) -> list[int]:
    """The accepted tokens of a chain, and the target's own after them."""
    tokens: list[int] = []
    for token in [*draft, None]:
        chosen = target([*text, *tokens])
        tokens.append(chosen)
        if token != chosen:
            break
    return tokens


@pytest.mark.parametrize("drafter", ["suffix", "prompt_lookup max_ngram=4", "prompt_lookup matches=3"])
def test_answers_in_vllm_are_those_of_plain_decoding(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests change rows, one waits for a step, and one leaves and is replaced."""
    monkeypatch.setenv("SPEC_SDK_DRAFTER", drafter)
    runner = VllmRunner("spec_sdk_serving.vllm_proposer.Proposer", depth=5)
    texts, steps, accepted = {i: list(text) for i, text in enumerate(TEXTS)}, 0, 0
    order, drafts = [0, 1, 2], dict.fromkeys(range(4), list[int]())
    for step in range(30):
        if step == 12:
            order, texts[3] = [2, 0, 3], [*TEXTS[1], 30, 31, 30]
        sampled = {}
        for name in order:
            waits = step == 5 and name == 1
            sampled[name] = [] if waits else verified(texts[name], drafts[name])
            texts[name] += sampled[name]
            steps, accepted = steps + 1, accepted + max(0, len(sampled[name]) - 1)
        order = order[1:] + order[:1]
        found = runner.drafts([texts[name] for name in order], [sampled[name] for name in order])
        for name, draft in zip(order, found, strict=True):
            assert len(draft) <= 5 and (sampled[name] or not draft)
            drafts[name] = draft
    for name, text in texts.items():
        prompt = [*TEXTS[1], 30, 31, 30] if name == 3 else list(TEXTS[name])
        assert text == plain(prompt, len(text) - len(prompt))
    assert accepted > steps / 2
    # every row was known again: one request begins for each text
    assert runner.drafter._numbers == 4


def test_a_draft_ends_where_the_models_context_does() -> None:
    runner = VllmRunner("spec_sdk_serving.vllm_proposer.Proposer", depth=8, longest=20)
    text = [1, 2, 3] * 6
    assert [len(draft) for draft in runner.drafts([text], [[3]])] == [1]
    assert runner.drafts([[*text, 1]], [[1]]) == [[]]


def test_what_left_the_batch_is_forgotten_in_the_end() -> None:
    runner = VllmRunner("spec_sdk_serving.vllm_proposer.Proposer", depth=3)
    for i in range(40):
        runner.drafts([[i, 49, i, 49]], [[49]])
    assert len(runner.drafter.hosted.keys) <= 5


def test_a_chain_is_the_first_path_of_a_tree() -> None:
    builder = TreeBuilder(1, 6)
    first = builder.add(0, 2, "chosen")
    builder.add(0, 3, "chosen")
    builder.add(builder.add(first, 4, "chosen"), 5, "chosen")
    assert chain_of(builder.build().tree) == [2, 4, 5]
    assert chain_of(TokenTree.root_only(1)) == []


class SglangTree(Enum):
    """What a plug-in needs of SGLang's enumeration of algorithms."""

    NGRAM = auto()
    NONE = auto()

    def is_ngram(self) -> bool:
        return self is SglangTree.NGRAM

    def supports_mixed_chunk(self) -> bool:
        return False

    def handle_server_args(self, server_args: Any) -> None:
        server_args.handled = self

    @classmethod
    def register(
        cls, name: str, *, supports_overlap: bool = False, validate_server_args: Any = None, spec_class: Any = None
    ) -> Callable[[Any], Any]:
        interface = {each for each in vars(SglangTree) if each.startswith(("is_", "supports_"))}
        assert interface <= set(dir(spec_class)) and name.upper() not in SglangTree.__members__

        def decorator(factory: Any) -> Any:
            REGISTERED[name.upper()] = spec_class(
                name=name.upper(),
                factory=factory,
                supports_overlap=supports_overlap,
                validate_server_args=validate_server_args,
            )
            return factory

        return decorator


REGISTERED: dict[str, Any] = {}


class CustomSpecAlgo:
    """The base of registered algorithms."""

    def __init__(
        self, name: str, factory: Any, *, supports_overlap: bool = False, validate_server_args: Any = None
    ) -> None:
        self.name, self.factory, self.supports_overlap = name, factory, supports_overlap

    def is_ngram(self) -> bool:
        return False

    def supports_mixed_chunk(self) -> bool:
        return False

    def has_draft_kv(self) -> bool:
        return True

    def create_worker(self, server_args: Any) -> Any:
        assert server_args.disable_overlap_schedule or self.supports_overlap
        return self.factory(server_args)


class NGRAMWorker:
    """The parts of SGLang's worker that meet the corpus, in the order in which it calls them."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        self.enable_overlap = not server_args.disable_overlap_schedule
        self.draft_token_num = server_args.speculative_num_draft_tokens
        self.ngram_corpus: Any = None
        self._target_worker = target_worker
        self._prev_decode_rids: set[str] = set()

    def clear_cache_pool(self) -> None:
        self.ngram_corpus.reset()
        self._prev_decode_rids = set()

    def forward_batch_generation(self, batch: Any, on_publish: Any = None, pp_proxy_tensors: Any = None) -> Any:
        tokens, mask = self._prepare_draft_tokens(batch)  # type: ignore[attr-defined]
        rows, nodes = len(batch.reqs), self.draft_token_num
        assert tokens.dtype == np.int64 and tokens.shape == (rows * nodes,)
        assert mask.dtype == np.bool_ and mask.shape == (rows * nodes * nodes,)
        accept_tokens, accept_lens = torch.zeros(rows, nodes, dtype=torch.int32), torch.zeros(rows, dtype=torch.int32)
        for i, request in enumerate(batch.reqs):
            found = self._target_worker(request, tokens.reshape(rows, -1)[i], mask.reshape(rows, nodes, nodes)[i])
            accept_tokens[i, : len(found)], accept_lens[i] = torch.tensor(found), len(found)
        self._update_ngram_corpus(batch)  # type: ignore[attr-defined]
        here = {request.rid for request in batch.reqs}
        if departed := self._prev_decode_rids - here:
            self.ngram_corpus.erase_match_state(list(departed))
        self._prev_decode_rids = here
        return SimpleNamespace(accept_tokens=accept_tokens.flatten(), accept_lens=accept_lens)


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the modules that the plug-in imports."""
    REGISTERED.clear()
    room = "sglang.srt.speculative"
    contents: dict[str, dict[str, Any]] = {
        "sglang": {},
        "sglang.srt": {},
        room: {},
        f"{room}.spec_info": {"SpeculativeAlgorithm": SglangTree},
        f"{room}.spec_registry": {"CustomSpecAlgo": CustomSpecAlgo},
        f"{room}.ngram_worker": {"NGRAMWorker": NGRAMWorker},
    }
    for name, values in contents.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)


def tree_verified(texts: dict[str, list[int]]) -> Callable[[Any, np.ndarray, np.ndarray], list[int]]:
    """A target that walks down a tree as SGLang's greedy verification does: to the child that it would choose."""

    def verify(request: Any, token_N: np.ndarray, mask_NN: np.ndarray) -> list[int]:
        text, node, found = texts[request.rid], 0, list[int]()
        assert token_N[0] == text[-1] and not np.triu(mask_NN, 1).any() and mask_NN.diagonal().all()
        parent_N = [-1, *(int(np.flatnonzero(mask_NN[i, :i])[-1]) for i in range(1, len(token_N)))]
        for i in range(1, len(token_N)):
            # a node sees what its parent sees, and itself
            assert (mask_NN[i, :i] == mask_NN[parent_N[i], :i]).all()
        while True:
            chosen = target([*text, *found])
            found.append(chosen)
            below = [i for i in range(1, len(token_N)) if parent_N[i] == node and token_N[i] == chosen]
            if not below:
                return found
            node = below[0]

    return verify


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("drafter", ["suffix", "prompt_lookup matches=3"])
def test_answers_in_sglang_are_those_of_plain_decoding(
    drafter: str, overlap: bool, sglang: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With overlap, requests hear of what a step accepted one step later."""
    monkeypatch.setenv("SPEC_SDK_DRAFTER", drafter)
    register()
    algorithm, nodes = REGISTERED["SPEC_SDK"], 8
    arguments = SimpleNamespace(disable_overlap_schedule=not overlap, speculative_num_draft_tokens=nodes)
    algorithm.handle_server_args(arguments)
    assert arguments.handled is SglangTree.NGRAM and algorithm.is_ngram() and not algorithm.has_draft_kv()
    texts = {str(i): list(text) for i, text in enumerate(TEXTS)}
    worker = algorithm.create_worker(arguments)(
        server_args=arguments, gpu_id=0, nccl_port=0, target_worker=tree_verified(texts)
    )
    requests = {
        name: SimpleNamespace(rid=name, origin_input_ids_unpadded=list(text[:-1]), output_ids=[])
        for name, text in texts.items()
    }
    names, steps, accepted = list(texts), 0, 0
    first = torch.zeros(3, nodes, dtype=torch.int32)
    first[:, 0] = torch.tensor([text[-1] for text in texts.values()])
    said = SimpleNamespace(accept_tokens=first.flatten(), accept_lens=torch.ones(3, dtype=torch.int32))
    late = {name: [texts[name][-1]] for name in names}
    for step in range(25):
        if step == 15:
            names = names[1:]
            said.accept_tokens = said.accept_tokens.reshape(3, nodes)[1:].flatten()
            said.accept_lens = said.accept_lens[1:]
        if not overlap:
            for name in names:
                requests[name].output_ids += late[name]
        batch = SimpleNamespace(
            reqs=[requests[name] for name in names], spec_info=said, grammar_needs_sync=lambda: False
        )
        said = worker.forward_batch_generation(batch)
        if overlap:
            for name in names:
                requests[name].output_ids += late[name]
        for i, name in enumerate(names):
            late[name] = said.accept_tokens.reshape(-1, nodes)[i, : said.accept_lens[i]].tolist()
            texts[name] += late[name]
            steps, accepted = steps + 1, accepted + len(late[name]) - 1
    for i, text in enumerate(texts.values()):
        assert text == plain(list(TEXTS[i]), len(text) - len(TEXTS[i]))
    assert accepted > steps / 2
    assert sorted(worker.ngram_corpus.hosted.keys) == names
    worker.clear_cache_pool()
    assert not worker.ngram_corpus.hosted.keys


def test_a_tree_is_filled_up_with_children_of_the_root() -> None:
    builder = TreeBuilder(9, 4)
    builder.add(builder.add(0, 1, "chosen"), 2, "chosen")
    tokens, mask = padded(builder.build().tree, 5)
    assert tokens.tolist() == [9, 1, 2, 0, 0]
    assert mask.astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [1, 0, 0, 0, 1],
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("eagle", "it needs a model"),
        ("draft_model", "it needs a model"),
        ("token_recycling", "wants the most probable tokens"),
        ("suffix min_probability", "is not option=value"),
        ("suffix min_probability=2", "drafter.min_probability"),
        ("sufix", "unknown drafter 'sufix', did you mean 'suffix'?"),
    ],
)
def test_what_cannot_work_there_is_one_line(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        HostedDrafter(drafter_options(text))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_default_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPEC_SDK_DRAFTER", raising=False)
    assert drafter_options() == {"name": "suffix"}
    assert drafter_options("prompt_lookup drafter.max_ngram=4") == {"name": "prompt_lookup", "max_ngram": 4}
    assert isinstance(VllmRunner("spec_sdk_serving.vllm_proposer.Proposer", 3).drafter, Proposer)
