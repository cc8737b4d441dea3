"""How the processes of a run find one another, before torch.distributed joins them.

Torch waits for all of them in one piece, and knows neither who is missing nor who has ended meanwhile. Here each rank
has its lifeline (:mod:`spec_sdk_backends.lifelines`) as soon as it comes, so that one which ends ends all; one that was
refused before it came says so; and who waits long says for whom.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Collection
from datetime import timedelta
from typing import Any

from spec_sdk.cli.jobs import EXIT_USER_ERROR
from spec_sdk.errors import RankLost, UserError
from spec_sdk.ranks import REFUSED, meeting_key
from spec_sdk_backends.lifelines import Lifelines

TELL_AFTER_S = 10.0
"""A process that has waited so long says for whom."""


class Meeting:
    """Of ``size`` processes, of which this is ``rank``, at the leader's ``MASTER_ADDR`` and ``MASTER_PORT``.

    ``lifelines``: between them. Keep it as long as they are: the leader's has the store that they met at. Raises
    RankLost, or UserError where another process was refused, within ``timeout_s`` of waiting.
    """

    def __init__(self, rank: int, size: int, timeout_s: float) -> None:
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        self._size, self._timeout_s, self._began, self._told = size, timeout_s, time.monotonic(), False
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        # torchrun has a store of its own there, of which all are clients
        agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        whom = f"the leader at {address}:{port} to have met all {size} processes"
        telling = threading.Timer(TELL_AFTER_S, self._tell, [whom])
        telling.daemon = True
        if rank:
            # the leader looks who is there itself
            telling.start()
        try:
            self._server = TCPStore(
                address,
                port,
                is_master=rank == 0 and not agents,
                timeout=timedelta(seconds=timeout_s),
                wait_for_workers=False,
                # torch.distributed's own will be the same
                multi_tenant=True,
            )
            self._store: Any = PrefixStore(meeting_key(), self._server)
            self.lifelines = Lifelines(self._store, rank, size, self._wait, timeout_s)
        finally:
            telling.cancel()

    def _wait(self, here: Collection[int]) -> None:
        """Called every now and then while the leader waits for others than ``here``."""
        if self._store.check([REFUSED]):
            rank, status = map(int, self._store.get(REFUSED).split())
            line = f"process {rank} of {self._size} ended before it met the others, and says why"
            raise UserError(line) if status == EXIT_USER_ERROR else RankLost(line)
        missing = [str(rank) for rank in range(1, self._size) if rank not in here]
        if time.monotonic() - self._began > TELL_AFTER_S:
            which = f"process {missing[0]}" if len(missing) == 1 else f"processes {', '.join(missing)}"
            self._tell(f"{which} of {self._size}")

    def _tell(self, whom: str) -> None:
        if not self._told and self._timeout_s > TELL_AFTER_S:
            self._told = True
            line = f"waiting for {whom}, for {self._timeout_s:g} s at most (backend.timeout)"
            # on other ranks than the leader sys.stderr leads nowhere
            print(line, file=sys.__stderr__, flush=True)
