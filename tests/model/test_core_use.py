"""Who uses the cores: read from files as Linux writes them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spec_sdk_backends.core_use import CoreTimes, granted_cpus, read_core_times

linux = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")


def stat_of(idle_ticks: dict[int, int]) -> str:
    """A /proc/stat in which CPUs were idle so many ticks, half of them waiting for a disk, and ran 7777 more."""
    lines = ["cpu  1 2 3 4 5 6 7 8 9 10"]
    lines += [f"cpu{n} 7777 0 0 {ticks - ticks // 2} {ticks // 2} 0 0 0 0 0" for n, ticks in idle_ticks.items()]
    return "\n".join([*lines, "intr 5 0 0", "ctxt 9", ""])


@linux
def test_idle_time_is_that_of_the_cores_that_may_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3})
    tick = os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"
    stat.write_text(stat_of({0: 9 * tick, 1: 2 * tick, 2: 9 * tick, 3: 3 * tick}))
    times = read_core_times(stat)
    assert (times.cpus, times.idle_s) == (2, 5.0)


@linux
@pytest.mark.parametrize("content", ["", "cpu 0 0 0 0\ncpu0 x\n", "cpu 0 0 0 0 0\ncpu0 0 0 0 0 0\n", "no stat\n"])
def test_a_sandbox_that_does_not_say_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    stat = tmp_path / "stat"
    stat.write_text(content)
    assert read_core_times(stat).idle_s is None
    assert read_core_times(tmp_path / "none").idle_s is None


def test_others_have_what_is_neither_idle_nor_ones_own() -> None:
    before = CoreTimes(10.0, 4, 100.0, 7.0)
    assert CoreTimes(12.0, 4, 103.0, 10.0).others_since(before) == pytest.approx(1.0)
    # clock ticks are rounded: never less than nothing
    assert CoreTimes(12.0, 4, 106.0, 9.1).others_since(before) == 0.0
    for unknown in (
        CoreTimes(12.0, 4, None, 10.0),
        CoreTimes(10.0, 4, 103.0, 10.0),
        CoreTimes(12.0, 2, 103.0, 10.0),
    ):
        assert unknown.others_since(before) is None


@linux
def test_this_machine_is_read() -> None:
    before = read_core_times()
    ends = time.perf_counter() + 0.2
    while time.perf_counter() < ends:
        pass
    now = read_core_times()
    others = now.others_since(before)
    assert others is None or 0 <= others <= now.cpus
    assert now.own_s > before.own_s


def groups(tmp_path: Path, lines: str, files: dict[str, str]) -> float | None:
    own, mounted = tmp_path / "cgroup", tmp_path / "sys"
    mounted.mkdir(exist_ok=True)
    own.write_text(lines)
    for name, content in files.items():
        (mounted / name).parent.mkdir(parents=True, exist_ok=True)
        (mounted / name).write_text(content)
    return granted_cpus(own, mounted)


def test_the_least_quota_of_all_control_groups_above_holds(tmp_path: Path) -> None:
    files = {
        "pod/cpu.max": "250000 100000\n",
        "pod/box/cpu.max": "max 100000\n",
        "pod/box/inner/cpu.max": "400000 100000\n",
        "other/cpu.max": "1000 100000\n",
    }
    assert groups(tmp_path, "0::/pod/box/inner\n", files) == 2.5


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/\n", {"cpu.max": "150000 100000"}) == 1.5
    # without a namespace its path is that of the machine, which is not mounted
    assert groups(tmp_path, "0::/docker/0123\n", {"cpu.max": "150000 100000"}) == 1.5
    assert groups(tmp_path, "0::/../elsewhere\n", {"cpu.max": "150000 100000"}) == 1.5


@pytest.mark.parametrize("mounted", ["cpu,cpuacct", "cpu"])
def test_quotas_of_the_first_version(tmp_path: Path, mounted: str) -> None:
    lines = "11:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/docker/x\n"
    files = {f"{mounted}/cpu.cfs_quota_us": "50000\n", f"{mounted}/cpu.cfs_period_us": "100000\n"}
    assert groups(tmp_path, lines, files) == 0.5
    files[f"{mounted}/cpu.cfs_quota_us"] = "-1\n"
    assert groups(tmp_path, lines, files) is None


@pytest.mark.parametrize("content", ["max 100000", "100000", "x y", "100000 0", ""])
def test_no_quota_is_none(tmp_path: Path, content: str) -> None:
    assert groups(tmp_path, "0::/a\n", {"a/cpu.max": content}) is None
    assert granted_cpus(tmp_path / "nothing", tmp_path) is None


def test_a_program_that_was_waited_for_is_none_of_the_others() -> None:
    """A compiler, say: cores that it had are free when it has ended."""
    before = read_core_times()
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert read_core_times().own_s - before.own_s > 0.35
