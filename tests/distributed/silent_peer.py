"""Two ranks, of which the last leaves without a word: its lifeline closes, its gloo connections stay open.

So it looks to the leader when gloo does not tell it that a process died. The argument says what the leader waits for.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from spec_sdk.app import settle
from spec_sdk.errors import RankLost
from spec_sdk.ranks import join
from spec_sdk_backends.process_ranks import ProcessRanks

FAR_TOO_LONG_S = 300


def main(waits_for: str) -> int:
    dist.init_process_group("gloo", timeout=timedelta(seconds=FAR_TOO_LONG_S))
    ranks = ProcessRanks(shares_memory=waits_for == "memory")
    join(ranks)
    peer = ranks.halves().peer
    ranks.all_reduce(torch.ones(1))
    if not ranks.is_leader:
        ranks._lifelines.close()
        time.sleep(FAR_TOO_LONG_S)
        return 1
    try:
        if waits_for in ("sum", "memory"):
            ranks.all_reduce(torch.ones(8))
        elif waits_for == "decision":
            # one small message may go without an answer
            while True:
                ranks.all_gather(torch.ones(8))
                ranks.decide(lambda: 1)
        else:
            peer.send(torch.ones(8))
            peer.flush()
    except RankLost as error:
        return settle(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
