"""What the doctor says of threads, extras, places and GPUs, from made-up machines."""

from __future__ import annotations

import json
import threading
from email.message import Message
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Finding
from spec_sdk.diagnosis import machine, places
from spec_sdk.diagnosis.packages import command_for, missing_of
from spec_sdk.errors import UserError
from spec_sdk.model.source_hub import HubUnreachable
from spec_sdk_backends import diagnosis
from spec_sdk_backends.diagnosis import large_pages, thread_findings


def threads(
    count: int, cores: int, granted: float | None = None, others: float | None = 0.0, setting: str = ""
) -> dict[str, Finding]:
    """``setting``: of the environment, ``NAME=value``."""
    name, _, value = setting.partition("=")
    environment = {name: value} if name else {}
    return {finding.subject: finding for finding in thread_findings(count, cores, granted, others, environment)}


def test_threads_on_an_idle_machine() -> None:
    found = threads(4, 4)
    assert found["threads"] == Finding("threads", "4 of torch; 4 cores")
    assert not any(finding.advice for finding in found.values())
    # torch takes a thread for each core of two hyper-threads
    assert not threads(4, 8)["threads"].advice


def test_more_threads_than_cores() -> None:
    assert threads(8, 4)["threads"].advice.endswith("backend.threads=4")
    limited = threads(8, 8, granted=2.5)["threads"]
    assert "of which a limit grants 2.5" in limited.text and limited.advice.endswith("backend.threads=2")
    assert threads(2, 8, granted=0.5)["threads"].advice.endswith("backend.threads=1")


def test_fewer_threads_than_the_environment_could_have() -> None:
    found = threads(1, 4, setting="OMP_NUM_THREADS=1")["threads"]
    assert "by OMP_NUM_THREADS=1" in found.text and "unset OMP_NUM_THREADS" in found.advice


@pytest.mark.parametrize(
    ("setting", "given", "text", "advice"),
    [
        ("madvise", 1.0, "100% of what asks for them; transparent_hugepage=madvise", ""),
        ("never", 0.0, "0% of what asks for them; transparent_hugepage=never", "echo madvise >"),
        ("always", 0.25, "25% of what asks for them; transparent_hugepage=always", "memory is in pieces"),
        (None, None, "this system does not say", ""),
    ],
)
def test_large_pages(setting: str | None, given: float | None, text: str, advice: str) -> None:
    found = large_pages(setting, given)
    assert found.text == text
    assert advice in found.advice and bool(found.advice) == bool(advice)


@pytest.mark.parametrize(
    ("setting", "others", "told"),
    [
        ("OMP_WAIT_POLICY=ACTIVE", 2.0, True),
        ("OMP_WAIT_POLICY=ACTIVE", 0.0, False),
        ("OMP_WAIT_POLICY=PASSIVE", 2.0, False),
        ("KMP_BLOCKTIME=infinite", 2.0, True),
        ("GOMP_SPINCOUNT=0", 2.0, False),
    ],
)
def test_spinning_matters_where_cores_are_wanted(setting: str, others: float, told: bool) -> None:
    assert bool(threads(4, 4, others=others, setting=setting)["waiting"].advice) is told


def test_other_programs_and_pinning() -> None:
    assert threads(4, 4, others=1.5)["other programs"].advice and not threads(2, 4, others=1.5)["other programs"].advice
    assert threads(4, 4, others=None)["other programs"].text == "unknown"
    assert threads(4, 4, setting="OMP_PROC_BIND=close")["pinning"].advice
    assert not threads(4, 4, setting="OMP_PROC_BIND=false")["pinning"].advice


class Package(Distribution):
    """A distribution that requires ``requires`` and was installed from ``origin``."""

    def __init__(self, requires: list[str], origin: object = None) -> None:
        self._requires, self._origin = requires, origin

    @property
    def requires(self) -> list[str]:
        return self._requires

    @property
    def metadata(self) -> Any:
        return Message()

    def read_text(self, filename: str) -> str | None:
        return json.dumps(self._origin) if filename == "direct_url.json" and self._origin is not None else None

    def locate_file(self, path: Any) -> Any:
        return Path(path)


def test_extras() -> None:
    own = Package(
        [
            "torch>=2.6",
            "sundial>=3",
            "abacus>=1; sys_platform == 'nowhere'",
            "torch>=99; extra == 'fast'",
            "spec-sdk[fast]; extra == 'all'",
            "hourglass[sand]>=1.2,<2; extra == 'all'",
            "pluggy; extra == 'light'",
        ]
    )
    assert missing_of(own, "") == ("sundial>=3",)
    assert missing_of(own, "light") == ()
    assert missing_of(own, "fast") == (f"torch>=99 (there is {torch.__version__})",)
    assert missing_of(own, "all") == (*missing_of(own, "fast"), "hourglass<2,>=1.2")


def test_extras_that_name_each_other() -> None:
    circle = ["spec-sdk[b]; extra == 'a'", "spec-sdk[a]; extra == 'b'", "sundial; extra == 'b'"]
    assert missing_of(Package(circle), "a") == ("sundial",)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'spec-sdk[ray]'"),
        ({"url": "file:///home/my%20code", "dir_info": {"editable": True}}, "pip install -e '/home/my code[ray]'"),
        ({"url": "file:///home/code", "dir_info": {}}, "pip install '/home/code[ray]'"),
        ({"url": "https://example.org/spec_sdk.whl"}, "pip install 'spec-sdk[ray]'"),
    ],
)
def test_the_command_that_gets_an_extra(origin: object, command: str) -> None:
    assert command_for(Package([], origin), "ray") == command


def test_a_hub_that_is_asked_in_vain() -> None:
    def fails(error: Exception) -> Any:
        def ask() -> None:
            raise error

        return ask

    assert places.within(5, lambda: None) == "answers"
    assert "does not answer (offline)" in places.within(5, fails(HubUnreachable("offline")))
    assert places.within(5, fails(UserError("no such model"))) == "answers: no such model"
    hanging = threading.Event()

    def hangs() -> None:
        hanging.wait(30)

    assert "has not answered in 0 s" in places.within(0.01, hangs)
    hanging.set()


def test_targets(tmp_path: Path) -> None:
    assert "a directory on this machine" in next(iter(places.target(str(tmp_path)))).text
    assert "not on this machine" in next(iter(places.target("nobody/has-this-model"))).text
    assert "no valid Hugging Face hub id" in next(iter(places.target("a//b/c"))).text


def test_a_limit_of_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "LIMITS_OF_MEMORY", (str(tmp_path / "none"), str(limit)))
    limit.write_text("max\n")
    found = {finding.subject: finding for finding in machine.machine()}
    assert "limited" not in found["memory"].text
    limit.write_text("1073741824\n")
    found = {finding.subject: finding for finding in machine.machine()}
    assert found["memory"].text.endswith("this process is limited to 1.0 GiB") and found["memory"].advice


def test_little_room_on_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "not" / "there"
    assert machine.disk("cache", place).text.endswith(f"free at {tmp_path}")
    monkeypatch.setattr(machine, "LITTLE_DISK", 1 << 60)
    assert str(place) in machine.disk("cache", place).advice


def gpus(monkeypatch: pytest.MonkeyPatch, driver: str | None, built: str | None) -> Finding:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(diagnosis, "nvidia_driver", lambda: driver)
    return next(finding for finding in diagnosis.cuda_findings() if finding.subject == "GPU")


def test_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "no driver is seen" in gpus(monkeypatch, None, None).text and not gpus(monkeypatch, None, None).advice
    assert "built for CUDA" in gpus(monkeypatch, "580.1", None).advice
    assert "too old" in gpus(monkeypatch, "580.1", "13.0").advice
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert "CUDA_VISIBLE_DEVICES=7" in gpus(monkeypatch, "580.1", "13.0").advice


def test_kernels_that_were_cleaned_away_are_no_fault(tmp_path: Path) -> None:
    """As ``task=cache`` may, while a process has them loaded."""
    assert diagnosis._made_by(tmp_path / "gone.so").endswith("gone.so, removed since this process loaded it")
    (tmp_path / "made.so").write_bytes(b"...")
    assert diagnosis._made_by(tmp_path / "made.so").endswith("made.so, by an unknown compiler")
