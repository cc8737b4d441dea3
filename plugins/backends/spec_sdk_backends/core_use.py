"""Who uses the CPU cores of this machine: what this process may use of them, and what others take."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from spec_sdk.usable_cores import usable_cores

IDLE, IOWAIT = 3, 4
"""Columns of a CPU's line in /proc/stat, in ticks: what ran on it was nothing."""


@dataclass(frozen=True)
class CoreTimes:
    """Readings of one moment, in seconds since some start.

    ``cpus``: the CPUs that this process may run on. ``idle_s``: how long they ran nothing, all together; None on
    systems that do not say. ``own_s``: how long this process ran, all its threads together, and those that it waited
    for, such as a compiler.
    """

    at_s: float
    cpus: int
    idle_s: float | None
    own_s: float

    def others_since(self, before: CoreTimes) -> float | None:
        """How many of the CPUs others used on average since ``before``: programs, the kernel, the machine's host."""
        seconds = self.at_s - before.at_s
        if self.idle_s is None or before.idle_s is None or self.cpus != before.cpus or seconds <= 0:
            return None
        own, idle = self.own_s - before.own_s, self.idle_s - before.idle_s
        return min(float(self.cpus), max(0.0, self.cpus - (own + idle) / seconds))


def read_core_times(stat: Path = Path("/proc/stat")) -> CoreTimes:
    """The readings of now."""
    idle_s = _idle_s(stat)
    ended = os.times()
    own_s = time.process_time() + ended.children_user + ended.children_system
    return CoreTimes(time.perf_counter(), len(usable_cores()), idle_s, own_s)


def _idle_s(stat: Path) -> float | None:
    if not hasattr(os, "sched_getaffinity"):
        return None
    usable, ticks, found = os.sched_getaffinity(0), 0, 0
    try:
        with stat.open(encoding="ascii") as lines:
            for line in lines:
                name, *columns = line.split()
                if not name.startswith("cpu"):
                    break
                if name != "cpu" and int(name[3:]) in usable:
                    ticks += int(columns[IDLE]) + int(columns[IOWAIT])
                    found += 1
    except (OSError, ValueError, IndexError):
        return None
    # a sandbox may show a file of zeros, or of another machine
    return ticks / os.sysconf("SC_CLK_TCK") if ticks and found == len(usable) else None


def granted_cpus(own_groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> float | None:
    """The CPU seconds that a container's limit grants in a second; None without one.

    That is the least quota of this process's control group and of those that it is within, of either version.
    """
    quotas = []
    try:
        lines = own_groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        number, controllers, path = line.split(":", 2)
        unified = number == "0" and not controllers
        if unified or "cpu" in controllers.split(","):
            root = mounted if unified else mounted / controllers
            if not unified and not root.is_dir():
                root = mounted / "cpu"
            group = root / path.lstrip("/")
            within = [group, *group.parents]
            for directory in within[: within.index(root) + 1] if root in within else [root]:
                quotas.append(_quota_v2(directory) if unified else _quota_v1(directory))
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_v2(group: Path) -> float | None:
    return _share(_words(group / "cpu.max"))


def _quota_v1(group: Path) -> float | None:
    return _share([*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []


def _share(words: list[str]) -> float | None:
    """Of quota and period in microseconds; "max" and -1 are no limit."""
    if len(words) != 2 or not words[0].isdecimal() or not words[1].isdecimal() or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])
