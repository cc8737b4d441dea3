"""When a run is compiled, and what is said where it cannot be; and the parts of a block that a graph is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model import compilation, compiler
from spec_sdk.model.block_tensors import form_of, tensors_of, with_tensors
from spec_sdk.model.compilation import Compilation, choice_of
from spec_sdk.model.compiled_decoder import CompiledDecoder, compile_decoder
from spec_sdk.model.compiler import CannotCompile, Compiler, Graph
from spec_sdk.model.decoder import Decoder, Rotations
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.linear import Projection
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk_backends.cpu import CpuBackend, CpuConfig, CpuOps
from tests.support.tiny_decoder import tiny_decoder

CPU = torch.device("cpu")


def decoder(dtype: torch.dtype = torch.float32) -> Decoder:
    return load_decoder(RandomWeights(TINY, 0), CPU, dtype, CpuOps())


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def no_gcc(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(empty_cache))
    monkeypatch.delenv("CXX", raising=False)


@pytest.fixture
def pretended(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A compiler that leaves the function as it is; the keys that it was asked for."""
    keys: list[str] = []

    def obtain(self: Compiler, key: str, function: Callable[..., object], *others: object) -> Graph:
        if key not in keys:
            keys.append(key)
            self.graphs += 1
            self.compiled += 1
        return lambda tensors: list(function(*tensors))  # type: ignore[call-overload]

    monkeypatch.setattr(Compiler, "obtain", obtain)
    monkeypatch.setattr(compiler, "trial", lambda: None)
    return keys


@pytest.mark.parametrize(
    ("value", "choice"), [("auto", "auto"), (True, "true"), ("false", "false"), (False, "false"), ("TRUE", "true")]
)
def test_the_option(value: object, choice: str) -> None:
    assert choice_of(value, "backend.compile") == choice


def test_another_value_is_one_clear_line() -> None:
    with pytest.raises(UserError, match=r"^backend.compile: 'fast' must be auto, true or false$"):
        CpuBackend(CpuConfig(compile="fast"))


def test_auto_does_not_compile_where_the_length_is_unknown(pretended: list[str]) -> None:
    backend = CpuBackend(CpuConfig(native=False))
    backend.load(RandomWeights(TINY, 0), torch.float32)
    assert pretended == []
    assert backend.compiled == {"graphs": 0, "seconds": 0.0, "eager_because": "the length of the run is not known"}


def test_auto_compiles_what_earns_it(pretended: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    a_graph = 2 * compilation.ASSUMED_SECONDS + compilation.SECONDS_TO_LOAD
    enough = round(compilation.MARGIN * a_graph / (TINY.num_layers * compilation.SECONDS_A_LAYER))
    for tokens, graphs in ((enough - 10, 0), (enough + 10, 2)):
        backend = CpuBackend(CpuConfig(native=False))
        backend.expect(tokens)
        backend.load(RandomWeights(TINY, 0), torch.float32)
        assert len(pretended) == graphs
    monkeypatch.setattr(compiler, "seconds_a_graph", lambda: 1000.0)
    choosy = Compilation("auto", "backend.compile")
    choosy.tokens = enough + 10
    assert "2000.2 s" in str(choosy.not_worth_it(decoder())), "what was measured here counts"


def test_auto_is_eager_without_a_compiler(no_gcc: None) -> None:
    backend = CpuBackend(CpuConfig(native=False))
    backend.expect(10**9)
    backend.load(RandomWeights(TINY, 0), torch.float32)
    assert backend.compiled["graphs"] == 0
    assert "C++ compiler" in backend.compiled["eager_because"]


def test_true_without_a_compiler_is_one_clear_line(no_gcc: None) -> None:
    with pytest.raises(
        UserError, match=r"^backend.compile=true: nothing .* no C\+\+ compiler .*; use backend.compile="
    ):
        CpuBackend(CpuConfig(compile=True, native=False)).load(RandomWeights(TINY, 0), torch.float32)


def test_false_compiles_nothing(pretended: list[str]) -> None:
    backend = CpuBackend(CpuConfig(compile=False, native=False))
    backend.expect(10**9)
    backend.load(RandomWeights(TINY, 0), torch.float32)
    assert pretended == []


def test_a_broken_compiler_is_found_by_trying(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise CannotCompile("CppCompileError: no such flag")

    monkeypatch.setattr(compiler, "compile_to", fails)
    assert compiler.trial() == "CppCompileError: no such flag"
    with pytest.raises(UserError, match="no such flag"):
        CpuBackend(CpuConfig(compile=True, native=False)).load(RandomWeights(TINY, 0), torch.float32)


def test_a_damaged_graph_is_not_loaded(empty_cache: Path) -> None:
    path = compiler.place("some function")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no graph")
    assert compiler.load(path) is None


def test_one_graph_for_all_blocks_of_a_form(pretended: list[str]) -> None:
    made, fault = compile_decoder(decoder(), Compiler())
    assert isinstance(made, CompiledDecoder)
    assert fault is None
    assert len(pretended) == 2, "before and after attention"
    compile_decoder(decoder().subset([2, 0]), Compiler())
    assert len(pretended) == 2, "a cut has the same blocks"
    compile_decoder(decoder(torch.bfloat16), Compiler())
    assert len(pretended) == 4, "another dtype has other graphs"


def test_a_stage_is_a_function_of_its_tensors(pretended: list[str]) -> None:
    """Traced on one layer, it computes every layer, each with its own weights."""
    plain = decoder()
    made, _ = compile_decoder(plain, Compiler())
    M, D = TINY.hidden_size, TINY.head_dim
    h, a, cos, sin = torch.randn(2, 3, M), torch.randn(2, 3, M), torch.randn(2, 3, 1, D), torch.randn(2, 3, 1, D)
    with torch.no_grad():
        for layer in range(plain.layers):
            for found, expected in zip(
                (
                    *made.pre_attention(layer, h, Rotations([(cos, sin)] * len(plain.ropes))),
                    made.post_attention(layer, h, a),
                ),
                (
                    *plain.pre_attention(layer, h, Rotations([(cos, sin)] * len(plain.ropes))),
                    plain.post_attention(layer, h, a),
                ),
                strict=True,
            ):
                torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("name", "graphs"), [("qwen3", 2), ("gemma2", 2), ("gemma3", 2)])
def test_families_with_norms_and_windows_of_their_own(name: str, graphs: int, pretended: list[str]) -> None:
    """Layers of another kind have other rotations and windows, and the same stages."""
    plain = tiny_decoder(name)
    made, fault = compile_decoder(plain, Compiler())
    assert isinstance(made, CompiledDecoder)
    assert (fault, len(pretended)) == (None, graphs)
    M, D = plain.embedding.width, plain.config.head_dim
    h, a, cos, sin = torch.randn(1, 3, M), torch.randn(1, 3, M), torch.randn(1, 3, 1, D), torch.randn(1, 3, 1, D)
    with torch.no_grad():
        for layer in range(plain.layers):
            found = (
                *made.pre_attention(layer, h, Rotations([(cos, sin)] * len(plain.ropes))),
                made.post_attention(layer, h, a),
            )
            expected = (
                *plain.pre_attention(layer, h, Rotations([(cos, sin)] * len(plain.ropes))),
                plain.post_attention(layer, h, a),
            )
            for ours, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(ours, theirs)


def test_a_stage_that_cannot_be_traced_stays_eager(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def obtain(self: Compiler, key: str, *others: object) -> Graph:
        if key.startswith("after"):
            raise CannotCompile("it looks at values")
        self.graphs += 1
        return lambda tensors: tensors

    monkeypatch.setattr(Compiler, "obtain", obtain)
    made, fault = compile_decoder(decoder(), Compiler())
    assert isinstance(made, CompiledDecoder)
    assert {block.after for block in made.compiled} == {None}
    assert fault == "layer 0 after attention: it looks at values"


@dataclass(frozen=True)
class Part:
    gain: torch.Tensor
    product: Projection
    experts: list[Projection]
    none: None = None
    epsilon: float = 1e-5

    @cached_property
    def doubled(self) -> torch.Tensor:
        return self.gain * 2


def part(width: int = 3, epsilon: float = 1e-5) -> Part:
    experts = [Projection(torch.randn(width, 2)), Projection(torch.randn(width, 2), torch.randn(width))]
    return Part(torch.randn(2), Projection(torch.randn(width, 2)), experts, epsilon=epsilon)


def test_a_part_over_other_tensors() -> None:
    first, second = part(), part()
    exchanged = with_tensors(first, tensors_of(second))
    assert len(tensors_of(first)) == 5
    for found, expected in zip(tensors_of(exchanged), tensors_of(second), strict=True):
        assert found is expected
    x = torch.randn(1, 2)
    torch.testing.assert_close(exchanged.experts[1](x), second.experts[1](x))
    assert not torch.equal(first.gain, exchanged.gain), "the part itself is left alone"


def test_parts_of_a_form_differ_in_values_alone() -> None:
    assert form_of(part()) == form_of(part())
    assert form_of(part()) != form_of(part(width=4))
    assert form_of(part()) != form_of(part(epsilon=1e-6))
    assert form_of(part()) != form_of(replace(part(), gain=torch.randn(2).bfloat16()))
    assert form_of(part()) != form_of(replace(part(), experts=[]))


def test_what_a_part_works_out_and_keeps_is_no_part_of_it() -> None:
    used, second = part(), part()
    form = form_of(used)
    assert used.doubled is used.doubled
    assert form_of(used) == form and len(tensors_of(used)) == 5
    exchanged = with_tensors(used, tensors_of(second))
    assert torch.equal(exchanged.doubled, second.gain * 2), "it is worked out anew from the tensors that came instead"
    assert "doubled" in vars(used), "the part itself is left alone"


def test_a_mixture_of_experts_is_not_compiled_after_attention(pretended: list[str]) -> None:
    """In a model with an MLP in some layers, those are."""
    made, fault = compile_decoder(tiny_decoder("sparse_steps"), Compiler())
    assert isinstance(made, CompiledDecoder)
    dense = [isinstance(block.mlp, GatedMLP) for block in made.blocks]
    assert len({*dense}) == 2
    assert [block.after is not None for block in made.compiled] == dense
    assert all(block.before is not None for block in made.compiled)
    assert fault is not None and fault.endswith("after attention: a mixture of experts is not compiled")
