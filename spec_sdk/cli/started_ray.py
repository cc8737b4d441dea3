"""Ray for the jobs of a sweep by ``hydra/launcher=ray``: started before its launcher would, and ended before the table.

Left to the launcher, it would refuse to be on a cluster that runs already, take SIGTERM from the sweep, wait for ever
for more cores than there are, and show the jobs' last lines behind the table.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from spec_sdk.cli.jobs import Terminated, end_on_sigterm
from spec_sdk.errors import UserError

LAUNCHER = "ray"
OBJECT_STORE_BYTES = 75 << 20
"""Of a Ray on this machine, and the least that it takes: a job is given its config, and returns a number."""
LOCAL = {"address": "local", "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
CONNECT_S = 10.0
_PLACE = re.compile(r"(?P<host>[^:/]+):(?P<port>\d+)")
LAST_LINES_S = 0.5
"""Ray shows what jobs print a moment later, and nothing once it has ended. At the end of a process it waits as long."""


@contextlib.contextmanager
def started_ray(launcher: DictConfig) -> Iterator[None]:
    """Ray as ``hydra.launcher.ray.init`` has it, ended on the way out with whatever jobs still run.

    Of a cluster that runs already (``init.address``, or Ray's own RAY_ADDRESS) the jobs alone end. Raises UserError
    where a job asks for more cores than Ray has on this machine, for cores that are no number and for an address where
    nobody answers, and what ``ray.init`` raises.
    """
    import ray

    init: dict[str, Any] = _plain(launcher, "init")
    remote: dict[str, Any] = _plain(launcher, "remote")
    init = {name: value for name, value in init.items() if value is not None}
    address = str(init.get("address", os.environ.get("RAY_ADDRESS") or "local"))
    local = address == "local"
    for option, count in (("init", init.get("num_cpus", 1)), ("remote", remote.get("num_cpus", 1))):
        if isinstance(count, bool) or not isinstance(count, int | float):
            raise UserError(f"hydra.launcher.ray.{option}.num_cpus: {count!r} is no number")
    _check_answers(address)
    try:
        ray.init(**(LOCAL | init if local else init))
        terminated = end_on_sigterm()
        cores, asked = ray.cluster_resources().get("CPU", 0), remote.get("num_cpus", 1)
        if local and asked > cores:
            raise UserError(
                f"hydra.launcher.ray.remote.num_cpus: {asked:g} for a job, and Ray has {cores:g} here; see "
                "hydra.launcher.ray.init.num_cpus"
            )
        try:
            yield
        except KeyboardInterrupt:
            # Ray raises one of its own for whatever a signal's handler raises
            if terminated.is_set():
                raise Terminated from None
            raise
        finally:
            time.sleep(LAST_LINES_S)
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise UserError if nobody listens at ``HOST:PORT``: Ray would try for a minute and say nothing."""
    place = _PLACE.fullmatch(address)
    if place is None:
        return
    try:
        socket.create_connection((place["host"], int(place["port"])), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"hydra.launcher.ray.init.address: nobody answers at {address} ({error})") from error


def _plain(launcher: DictConfig, key: str) -> dict[str, Any]:
    found = OmegaConf.to_container(launcher.ray[key], resolve=True)
    assert isinstance(found, dict)
    return {str(name): value for name, value in found.items()}
