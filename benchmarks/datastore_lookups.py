"""What a datastore takes: seconds to build, bytes, and microseconds of a look-up.

    python -m benchmarks.datastore_lookups

The text is random tokens of a 49,152-token vocabulary, drawn by Zipf's law, in which every second stretch of 64 tokens
is copied from before, so that runs of all lengths are found. Timed are the steps of drafting: finding the longest runs
at a text's end, what followed each, and the runs after a token; by the processor's time, which other work on the
machine changes little. Writes results/datastore_lookups.json.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.places import RESULTS
from spec_sdk.bench.machine import hardware_name, machine_facts
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import run_script, script_parser
from spec_sdk_drafters.acceptance_rates import AcceptanceRates
from spec_sdk_drafters.datastore import Datastore
from spec_sdk_drafters.datastore_file import END, open_datastore, write_datastore
from spec_sdk_drafters.datastore_source import LONGEST, RAREST, DatastoreSource, prior

VOCABULARY, STRETCH, TEXT = 49_152, 64, 1_000


def zipf_text(tokens: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Texts of 1,000 tokens, half of them copied from before."""
    choose = np.random.default_rng(seed)
    token_N = (choose.zipf(1.1, tokens) % VOCABULARY).astype(np.uint32)
    for at in range(2 * STRETCH, tokens - STRETCH, 2 * STRETCH):
        source = int(choose.integers(0, at - STRETCH))
        token_N[at : at + STRETCH] = token_N[source : source + STRETCH]
    token_N[TEXT - 1 :: TEXT] = END
    token_N[-1] = END
    return token_N


def microseconds(call: Callable[[Any], Any], arguments: list[Any]) -> dict[str, float]:
    """The median and the 95th percentile of single calls."""
    times = []
    for argument in arguments:
        began = time.thread_time()
        call(argument)
        times.append(1e6 * (time.thread_time() - began))
    return {"median_us": float(np.median(times)), "p95_us": float(np.percentile(times, 95)), "calls": len(times)}


def measured(tokens: int, look_ups: int) -> dict[str, Any]:
    choose, token_N = random.Random(1), zipf_text(tokens, 0)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "store"
        began = time.thread_time()
        write_datastore(path, token_N, VOCABULARY, "none", "random")
        built_s, began = time.thread_time() - began, time.thread_time()
        tensors = open_datastore(path, "none", "datastore")
        opened_s, size = time.thread_time() - began, path.stat().st_size
        datastore = Datastore(tensors)
        source = DatastoreSource(AcceptanceRates(prior), datastore, VOCABULARY)
        texts = []
        while len(texts) < look_ups:
            at = choose.randrange(tokens - LONGEST)
            text = token_N[at : at + LONGEST].tolist()
            if END not in text:
                # as of an answer: known text up to somewhere, then something else
                texts.append([choose.randrange(VOCABULARY)] * choose.randrange(LONGEST) + text)

        def places(text: list[int]) -> Any:
            source.extend(text)
            return source.end()

        found = {"runs_at_the_end": microseconds(places, texts)}
        ends = [places(text[-length:]) for text in texts for length in (2, 4, LONGEST)]
        known = [place for place in ends if place]
        found["guesses_at_a_node"] = microseconds(source.guesses, known)
        pairs = [(place, datastore.continuations(place[0], RAREST)) for place in known]
        after = [(place, followers[0].token) for place, followers in pairs if followers]
        found["place_after_a_token"] = microseconds(lambda pair: source.after(*pair), after)
    return {"tokens": tokens, "bytes": size, "built_cpu_s": built_s, "opened_cpu_s": opened_s, "look_ups": found}


def main() -> int:
    parser = script_parser(__doc__, output=RESULTS / "datastore_lookups.json", overrides=None)
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000], help="of the datastores"
    )
    parser.add_argument("--look-ups", type=int, default=2_000, help="of each kind, or thrice as many")
    options = parser.parse_args()
    cases = [measured(tokens, options.look_ups) for tokens in options.tokens]
    for case in cases:
        print(case["tokens"], f"{case['built_cpu_s']:.1f} s", case["bytes"], case["look_ups"])
    write_report(options.output, {**machine_facts(hardware_name(torch.device("cpu"))), "cases": cases})
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
