"""``task=doctor`` on this machine: whole, and with something wrong in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Backend, Finding, NoOptions, SelfTest
from spec_sdk.diagnosis import places
from spec_sdk.errors import UserError
from spec_sdk.installed import Problem
from spec_sdk.registry import Registry
from spec_sdk_backends.cpu import CpuBackend, CpuOps
from spec_sdk_backends.native.library import find
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_backends.packed_projections import PackedProjection

Cli = Callable[..., Any]


class Pebbles(Backend):
    """A third party's backend."""

    name = "pebbles"
    Config = NoOptions

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def describe(self) -> str:
        return "pebbles on sand"

    @classmethod
    def diagnose(cls) -> list[Finding]:
        return [Finding("pebbles", "wet", "dry them")]

    def self_tests(self) -> list[SelfTest]:
        return [SelfTest("counting", "pebbles", 0.1, lambda: 0.25)]


class Sinking(Pebbles):
    """One that is not to be had here, and whose findings raise."""

    name = "sinking"

    def __init__(self, config: Any) -> None:
        raise UserError("backend=sinking: there is no sea here")

    @classmethod
    def diagnose(cls) -> list[Finding]:
        raise RuntimeError("too\ndeep")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """What is installed, but for accelerate, whose kernels are those of the CPU; a test may add to it. The hub is not
    asked.
    """
    installed, registry = Registry.discover(), Registry()
    for kind in ("task", "backend", "sampler"):
        for offer in installed.offers(kind):
            if offer.plugin.name != "accelerate":
                registry.register(offer.plugin, offer.package, offer.version)
    monkeypatch.setattr(Registry, "discover", lambda: registry)
    monkeypatch.setattr(places, "check_reachable", lambda reference: None)
    return registry


def of_backend(report: Any, name: str) -> dict[str, Any]:
    """What came of a backend's self-tests."""
    return next(tested for tested in report["self_tests"] if tested["of"] == f"backend={name}")


def test_a_sound_machine(cli: Cli, registry: Registry, own_directory: Path) -> None:
    result = cli("task=doctor")
    assert result.status == 0, result.out + result.err
    for heading in ("versions", "machine", "places", "plugins", "backend=cpu", "backend=cuda", "extras"):
        assert heading in result.out.splitlines(), heading
    for said in (
        "torch  ",
        "C++ compiler",
        "native kernels",
        "other programs",
        "free at",
        "answers",
        "to get ray: pip",
    ):
        assert said in result.out, said
    assert "self-test of the reference: largest error" in result.out and "ok, " in result.out
    if not torch.cuda.is_available():
        assert "self-test of backend=cuda: not available: " in result.out
    # a path stays whole, whatever its length
    long = [line for line in result.out.splitlines() if len(line.rstrip()) > 80]
    assert not [line for line in long if len(line.split()) > 1], long
    assert not list(own_directory.iterdir())
    passed = result.err.splitlines()[-1].split()
    assert passed[0] == passed[2] and int(passed[0]) > 30


def test_as_json(cli: Cli, registry: Registry) -> None:
    result = cli("task=doctor", "json=true", "backend.threads=1")
    report = json.loads(result.out)
    assert report["healthy"] is True and result.status == 0
    threads = next(f for f in report["findings"]["backend=cpu"] if f["subject"] == "threads")
    assert threads["text"].startswith("1 of torch")
    rms_norm = next(o for o in report["self_tests"][0]["outcomes"] if o["operation"] == "rms_norm")
    assert rms_norm["verdict"] == "ok" and 0 <= rms_norm["error"] < 1e-5
    assert {"name", "missing", "command"} == set(report["extras"][0])


def test_a_kernel_that_is_wrong(cli: Cli, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """One element of one row in a hundred off by two percent, where everything else is right."""

    def off(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = right(self, x)
        if x.shape[0] == 13:
            y[5, 7] *= 1.02
        return y

    right = PackedProjection.__call__
    monkeypatch.setattr(PackedProjection, "__call__", off)
    result = cli("task=doctor", "backend.native=false")
    assert result.status == 1
    assert "WRONG" in result.out and "projection, float32: wrong: off by" in result.out
    assert "what to change\n" in result.out and "- backend=cpu, projection (float32) is wrong" in result.out
    report = json.loads(cli("task=doctor", "backend.native=false", "json=true").out)
    wrong = {o["operation"] for o in of_backend(report, "cpu")["outcomes"] if o["verdict"] == "wrong"}
    assert wrong == {"projection"} and report["healthy"] is False


def test_a_native_kernel_that_is_wrong(cli: Cli, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(find(), str):
        pytest.skip(f"nothing can be compiled here: {find()}")
    right = NativeOps.top_log_probabilities
    monkeypatch.setattr(NativeOps, "top_log_probabilities", lambda *given: (right(*given)[0] + 1e-3, right(*given)[1]))
    report = json.loads(cli("task=doctor", "json=true").out)
    wrong = {(o["operation"], o["numbers"]) for o in of_backend(report, "cpu")["outcomes"] if o["verdict"] == "wrong"}
    assert wrong == {("top_log_probabilities", "float32")}


def test_backends_of_third_parties(cli: Cli, registry: Registry) -> None:
    registry.register(Pebbles, "beach", "1")
    registry.register(Sinking, "beach", "1")
    result = cli("task=doctor")
    assert result.status == 1
    text = " ".join(result.out.split())
    assert "- pebbles (wet): dry them" in text and "- backend=pebbles, counting (pebbles) is wrong" in text
    assert "self-test of backend=sinking: not available: backend=sinking: there is no sea here" in text
    assert "not looked at RuntimeError: too deep" in text


def test_a_backend_whose_kernels_cannot_be_asked_for(
    cli: Cli, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any) -> CpuOps:
        raise OSError("no such library")

    monkeypatch.setattr(CpuBackend, "ops", property(broken))
    result = cli("task=doctor")
    assert result.status == 1 and "OSError: no such library" in result.out


def test_a_plugin_that_cannot_be_loaded(cli: Cli, registry: Registry) -> None:
    registry.problems.append(Problem("beach", "plugin 'beach.shells' cannot be loaded: ImportError: no module"))
    result = cli("task=doctor")
    assert result.status == 1
    assert "beach: plugin 'beach.shells' cannot be loaded" in " ".join(result.out.split())
    assert result.err.splitlines()[-1].endswith("1 plugin cannot be loaded")


def test_bad_options_are_refused(cli: Cli, registry: Registry) -> None:
    assert cli("task=doctor", "backend=pc").status == 2
    assert "task.fix" in cli("task=doctor", "task.fix=true").error
