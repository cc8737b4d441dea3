"""A leader that serves has nothing for the others to do as long as nobody asks for anything; they wait."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from spec_sdk.parallel.spread_session import IDLE
from spec_sdk.ranks import Ranks

EVERY_S = 2.0
"""How often they hear of the leader, and it of them: a process that is gone is missed within this time."""


@contextlib.contextmanager
def waiting_followers(
    ranks: Ranks, lock: threading.RLock, failure: Callable[[], Exception | None], end: Callable[[Exception], None]
) -> Iterator[None]:
    """While it lasts the other ranks wait for calls, however long none comes. Nothing with one process.

    ``lock`` is held by who makes calls. ``end`` is called, in another thread, with what ended the calls for all:
    RankLost, or the ``failure`` of one in the middle of which the leader stopped, where the others may not have.
    """
    if ranks.size == 1:
        yield
        return
    done = threading.Event()

    def tell() -> None:
        while not done.wait(min(EVERY_S, ranks.patience_s / 4)):
            try:
                with lock:
                    if (failed := failure()) is not None:
                        raise failed
                    ranks.decide(lambda: IDLE)
            except Exception as error:
                end(error)
                return

    telling = threading.Thread(target=tell, name="spec-sdk-waiting-followers", daemon=True)
    telling.start()
    try:
        yield
    finally:
        done.set()
        telling.join()
