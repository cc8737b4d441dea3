"""The cuda backend without a GPU, without triton, and (with invented answers from torch) with both."""

from __future__ import annotations

import builtins
import importlib.util
import re
import sys
from types import SimpleNamespace

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.quantized_kv_cache import QuantizedKVCache
from spec_sdk_backends import cuda, diagnosis, spec_sdk_plugins
from spec_sdk_backends.accelerate import AccelerateBackend, AccelerateConfig
from spec_sdk_backends.cuda import CudaBackend, CudaConfig
from tests.support.configured import plugin_of
from tests.support.tiny_decoder import tiny_decoder


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Torch answers as if it had one GPU; returns the calls it got."""
    calls: list[str] = []
    properties = SimpleNamespace(name="Some GPU", total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(f"set_device {device}"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append(f"synchronize {device}"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return calls


def test_no_gpu_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        UserError, match=r"^backend=cuda: torch .* finds no CUDA device.*, or use backend=cpu$"
    ) as raised:
        CudaBackend(CudaConfig())
    assert str(raised.value) == f"backend=cuda: {CudaBackend.suitability(CudaConfig()).reason}, or use backend=cpu"


@pytest.mark.parametrize(
    ("driver", "built", "hidden", "advice"),
    [
        (None, None, None, "no NVIDIA driver is seen: with a GPU, install its driver and a torch built for CUDA"),
        ("570.1", None, None, "it is built without CUDA; install one from https://pytorch.org/get-started"),
        ("570.1", "12.8", "", "CUDA_VISIBLE_DEVICES= may hide it"),
        ("440.3", "12.8", None, "it is built for CUDA 12.8, for which driver 440.3 may be too old; update it"),
    ],
)
def test_what_is_missing_and_what_to_install(
    driver: str | None, built: str | None, hidden: str | None, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(diagnosis, "nvidia_driver", lambda: driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    suited = CudaBackend.suitability(CudaConfig())
    assert not suited.usable and suited.reason.endswith(advice)


@pytest.mark.parametrize(("capability", "dtype"), [(9, "bfloat16"), (8, "bfloat16"), (7, "float32")])
def test_the_dtype_and_the_sampler_that_suit_a_gpu(
    capability: int, dtype: str, one_gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(name="Some GPU", total_memory=80 * 2**30, major=capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    suited = CudaBackend.suitability(CudaConfig())
    assert (suited.usable, suited.rank, suited.dtype, suited.sampler) == (True, 100, dtype, "exact")
    assert suited.reason == "Some GPU, and Triton is installed"
    each = AccelerateBackend.suitability(AccelerateConfig())
    assert (each.dtype, each.sampler, each.rank) == (dtype, "exact", None)
    assert AccelerateBackend.suitability(AccelerateConfig(device="cpu")).dtype == "float32"
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else real(name))
    suited = CudaBackend.suitability(CudaConfig())
    assert not suited.usable and suited.reason == "triton is not installed: pip install 'spec-sdk[cuda]'"


def test_no_triton_is_one_clear_line(one_gpu: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else real(name))
    message = "backend=cuda: triton is not installed: pip install 'spec-sdk[cuda]', or use backend=cpu"
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        CudaBackend(CudaConfig())


@pytest.mark.parametrize(("index", "valid"), [(-1, "0 or more"), (1, "0 to 0: 1 GPUs are visible")])
def test_a_gpu_that_is_not_there(index: int, valid: str, one_gpu: list[str]) -> None:
    with pytest.raises(UserError, match=rf"^backend.index: {index} must be {valid}$"):
        plugin_of("backend", "cuda", index=index)


def test_device_ops_and_description(one_gpu: list[str]) -> None:
    pytest.importorskip("triton")
    backend = CudaBackend(CudaConfig())
    backend.synchronize()
    assert backend.device == torch.device("cuda", 0)
    assert type(backend.ops).__name__ == "TritonOps"
    assert backend.describe() == "Some GPU, 80 GiB"
    assert one_gpu == ["set_device cuda:0", "synchronize cuda:0"]


@pytest.mark.parametrize("deterministic", [False, True])
def test_each_pass_makes_its_gpu_the_current_one(deterministic: bool, one_gpu: list[str]) -> None:
    """In the thread that makes it: triton launches on whichever is current there."""
    pytest.importorskip("triton")
    backend = CudaBackend(CudaConfig())
    if deterministic:
        backend.be_deterministic()
    one_gpu.clear()
    backend.ops.before_pass()
    assert one_gpu == ["set_device cuda:0"]


def test_the_clock_marks_the_streams_of_its_own_gpu(one_gpu: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    marked: list[object] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: device)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: SimpleNamespace(record=marked.append))
    CudaBackend(CudaConfig()).clock().mark()
    assert marked == [torch.device("cuda", 0)]


def test_listing_plugins_does_not_import_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("triton", "spec_sdk_backends.t"))]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def guarded(name: str, *rest: object) -> object:
        assert name.split(".")[0] != "triton", "triton imported"
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", guarded)
    assert {"cpu", "cuda"} <= {plugin.name for plugin in spec_sdk_plugins()}


def test_passes_are_captured_unless_it_is_refused(one_gpu: list[str]) -> None:
    pytest.importorskip("triton")
    assert CudaBackend(CudaConfig(compile=False)).compiled == {}
    assert CudaBackend(CudaConfig()).compiled == CudaBackend(CudaConfig(compile=True)).compiled == {"graphs": 0}
    with pytest.raises(UserError, match=r"^backend.compile: 'often' must be auto, true or false$"):
        CudaBackend(CudaConfig(compile="often"))


def test_a_cache_in_other_bits_is_read_by_eager_passes(one_gpu: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless captured passes were asked for by name."""
    pytest.importorskip("triton")
    monkeypatch.setattr(cuda, "load_decoder", lambda *arguments: tiny_decoder("smollm"))
    executor = CudaBackend(CudaConfig()).load(None, torch.float32)  # type: ignore[arg-type]
    assert executor.one_launch and executor.new_cache().doubles_up_to > 0  # type: ignore[attr-defined]
    executor.keep_cache_in("int8")
    cut = executor.cut([0, 2])
    for one in (executor, cut):
        cache = one.new_cache()
        assert not one.one_launch and isinstance(cache, QuantizedKVCache) and not cache.doubles_up_to
    asked = CudaBackend(CudaConfig(compile=True)).load(None, torch.float32)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^model.kv_cache: captured passes read the cache in place"):
        asked.keep_cache_in("int8")


def test_small_operations_are_fused_unless_it_is_refused(one_gpu: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Other blocks are run as they are, and the report says why."""
    pytest.importorskip("triton")

    def decoder_of(config: CudaConfig, name: str = "smollm") -> tuple[str, object]:
        monkeypatch.setattr(cuda, "load_decoder", lambda *arguments: tiny_decoder(name))
        backend = CudaBackend(config)
        executor = backend.load(None, torch.float32)  # type: ignore[arg-type]
        return type(executor.decoder).__name__, backend.compiled.get("unfused_because")  # type: ignore[attr-defined]

    assert decoder_of(CudaConfig()) == ("FusedDecoder", None)
    assert decoder_of(CudaConfig(compile=False)) == ("FusedDecoder", None)
    assert decoder_of(CudaConfig(fuse=False)) == ("Decoder", None)
    assert decoder_of(CudaConfig(fuse=True), "mixtral")[1] == "layer 0 has no gated MLP"
    with pytest.raises(UserError, match=r"^backend.fuse: 'often' must be auto, true or false$"):
        CudaBackend(CudaConfig(fuse="often"))
