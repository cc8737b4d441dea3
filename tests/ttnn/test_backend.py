"""backend=ttnn where one of its two packages is missing, or both, and what it refuses."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk_backends.ttnn.backend import TtnnBackend, TtnnConfig


def install(monkeypatch: pytest.MonkeyPatch, *installed: str) -> None:
    """From here on these packages are installed, of ttnn and tt-lang-sim."""

    def version(name: str) -> str:
        if name in installed:
            return "1.2.3"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


@pytest.mark.parametrize(
    ("installed", "simulate", "message"),
    [
        ((), "auto", "backend=ttnn: neither ttnn nor tt-lang-sim is installed: pip install 'spec-sdk[ttnn-sim]' for"),
        (("ttnn",), True, "backend.simulate=true: tt-lang-sim is not installed: pip install 'spec-sdk[ttnn-sim]'"),
        (
            ("tt-lang-sim",),
            False,
            "backend.simulate=false: ttnn is not installed: on a machine with a Tenstorrent device pip install ",
        ),
        (("tt-lang-sim",), "yes", "backend.simulate: 'yes' must be auto, true or false"),
    ],
)
def test_what_is_not_installed_is_one_line(
    installed: tuple[str, ...], simulate: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, *installed)
    with pytest.raises(UserError) as caught:
        TtnnBackend(TtnnConfig(simulate=simulate))
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("installed", "simulate", "simulates"),
    [
        (("ttnn",), "auto", False),
        (("tt-lang-sim",), "auto", True),
        (("ttnn", "tt-lang-sim"), "auto", False),
        (("ttnn", "tt-lang-sim"), True, True),
    ],
)
def test_a_device_is_taken_before_the_simulator(
    installed: tuple[str, ...], simulate: object, simulates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, *installed)
    backend = TtnnBackend(TtnnConfig(simulate=simulate))
    assert backend.simulates == simulates and ("simulator" in backend.describe()) == simulates


def test_doctor_is_told_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "tt-lang-sim")
    assert [(finding.subject, finding.text) for finding in TtnnBackend.diagnose()] == [
        ("ttnn", "not installed, which backend=ttnn needs for a Tenstorrent device"),
        ("tt-lang-sim", "1.2.3: backend=ttnn computes on TT-Lang's functional simulator"),
    ]
    install(monkeypatch)
    assert (
        TtnnBackend.diagnose()[1].text == "not installed, which backend=ttnn needs for TT-Lang's functional simulator"
    )


@pytest.mark.parametrize(
    ("config", "dtype", "message"),
    [
        (TINY, torch.float16, "model.dtype: the simulator computes in bfloat16 or float32, not in float16"),
        (
            replace(TINY, activation="gelu_tanh"),
            torch.float32,
            "model: qwen3 with the activation gelu_tanh: backend ttnn",
        ),
        (replace(TINY, logit_softcap=30.0), torch.float32, "model: qwen3 with soft-capped logits: backend ttnn has no"),
    ],
)
def test_what_it_cannot_compute_is_refused(
    config: ModelConfig, dtype: torch.dtype, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "tt-lang-sim")
    with pytest.raises(UserError) as caught:
        TtnnBackend(TtnnConfig()).load(RandomWeights(config, 0), dtype)
    assert str(caught.value).startswith(message)
