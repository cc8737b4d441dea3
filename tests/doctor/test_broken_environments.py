"""``task=doctor`` where something real is missing: in a process of its own, which has to make do with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

DOCTOR = ("-m", "spec_sdk", "task=doctor", "json=true")
NOBODY = "http://127.0.0.1:9"
"""A port that nothing listens on."""


def examined(place: Path, **environment: str) -> dict[str, Any]:
    """The report of a doctor that was called in an empty ``place``; that it ends with 0 is seen to."""
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "OMP_NUM_THREADS")
    given = {name: os.environ[name] for name in kept if name in os.environ}
    own = {"SPEC_SDK_CACHE": str(place / "cache"), "HF_HOME": str(place / "hub"), "HF_ENDPOINT": NOBODY}
    done = subprocess.run(
        [sys.executable, *DOCTOR],
        cwd=place,
        env=given | own | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["healthy"] is True
    return report


def finding(report: dict[str, Any], section: str, subject: str) -> dict[str, str]:
    """What was found of one thing."""
    found: dict[str, str] = next(f for f in report["findings"][section] if f["subject"] == subject)
    return found


def test_no_compiler_no_default_model_no_network(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    report = examined(tmp_path, PATH=str(tmp_path / "bin"), CXX="c++-that-is-not-there")
    kernels = finding(report, "backend=cpu", "native kernels")
    assert kernels["text"].startswith("none: there is no C++ compiler") and kernels["advice"]
    compilers = [f for f in report["findings"]["backend=cpu"] if f["subject"] == "C++ compiler"]
    assert [f["text"] for f in compilers] == [
        "CXX=c++-that-is-not-there is no program on the PATH",
        "none (g++ or clang++, or what CXX names)",
    ]
    assert all(f["advice"] for f in compilers)
    assert "there is no C++ compiler" in finding(report, "machine", "compiled passes")["text"]
    assert "not on this machine" in finding(report, "places", "model.target")["text"]
    assert "which is not there yet" in finding(report, "places", "hub cache")["text"]
    hub = finding(report, "places", "hub")
    assert hub["text"].startswith(f"{NOBODY}: does not answer") and not hub["advice"]
    # the packed layers are used, and tested
    cpu = next(tested for tested in report["self_tests"] if tested["of"] == "backend=cpu")
    assert {"projection", "a whole pass"} <= {o["operation"] for o in cpu["outcomes"]}
    # nothing was compiled, downloaded or measured
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_cache_that_cannot_be_written_a_hub_that_is_off_and_threads_that_spin(tmp_path: Path) -> None:
    """On one core, where this system tells cores apart."""
    (tmp_path / "cache").write_text("a file where the directory should be")
    before = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    spinning = {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "ACTIVE"}
    if before:
        os.sched_setaffinity(0, {min(before)})
    try:
        report = examined(tmp_path, HF_HUB_OFFLINE="1", **spinning)
    finally:
        if before:
            os.sched_setaffinity(0, before)
    cache = finding(report, "places", "cache")
    assert "is a file, not a directory" in cache["text"] and "SPEC_SDK_CACHE" in cache["advice"]
    kernels = finding(report, "backend=cpu", "native kernels")
    assert kernels["text"].startswith("none: ") and "SPEC_SDK_CACHE" in kernels["advice"]
    assert "offline mode (HF_HUB_OFFLINE)" in finding(report, "places", "hub")["text"]
    assert any("cache" in line for line in report["advice"])
    threads = finding(report, "backend=cpu", "threads")
    assert f"by OMP_NUM_THREADS=3; {1 if before else os.cpu_count()} cores" in threads["text"]
    if before and not threads["text"].startswith("1 of torch"):  # MKL takes no more than the machine has cores
        assert "backend.threads=1" in threads["advice"]
        assert "unset OMP_WAIT_POLICY" in finding(report, "backend=cpu", "waiting")["advice"]
