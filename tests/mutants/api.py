"""A library that shows, cuts, draws or shares wrongly."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STOPS = "spec_sdk/api/stop_strings.py"
ANSWERING = "spec_sdk/api/answering.py"
CUT = "spec_sdk/api/cut_cycle.py"
SERVING = "spec_sdk/api/serving.py"
LOADER = "spec_sdk/config/hydra_loader.py"
OF_STOPS = "tests/api/test_stop_strings.py"
OF_CUT = "tests/api/test_cut_cycle.py"
OF_GENERATE = "tests/api/test_generate.py"
OF_STREAM = "tests/api/test_stream.py"
OF_ASYNC = "tests/api/test_async.py"
OF_HYDRA = "tests/api/test_hydra_program.py"

API = (
    Mutant(
        "part of a stop string is shown",
        STOPS,
        "held = max((_begun(text, stop) for stop in self._stops), default=0)",
        "held = 0",
        (OF_STOPS,),
    ),
    Mutant(
        "the stop string that stands first counts, not the one that is complete first",
        STOPS,
        "return text[: min(ends)[1]]",
        "return text[: min(place for _, place in ends)]",
        (OF_STOPS,),
    ),
    Mutant(
        "tokens behind a stop string stay in the metrics",
        ANSWERING,
        "event = dict(cut_cycle(event, len(texts)))",
        "event = dict(event)",
        (OF_STOPS,),
    ),
    Mutant(
        "what a stop string cuts off stays accepted for the part that proposed it",
        CUT,
        'parts_of_accepted = event["accepted_parts"][:accepted]',
        'parts_of_accepted = event["accepted_parts"]',
        (OF_CUT,),
    ),
    Mutant(
        "forced tokens behind a stop string stay taken",
        CUT,
        "max(0, ending - (len(tokens) - kept))",
        "ending",
        (OF_CUT,),
    ),
    Mutant(
        "a stop string does not end its request",
        SERVING,
        'self._pipeline.engine.cancel(number, "stop")',
        "pass",
        (OF_STOPS,),
    ),
    Mutant(
        "all samples of a seed draw alike",
        SERVING,
        "stream = sample if plan.seeded else None",
        "stream = 0 if plan.seeded else None",
        (OF_GENERATE,),
    ),
    Mutant(
        "a seed's numbers depend on what was asked before",
        SERVING,
        "stream = sample if plan.seeded else None",
        "stream = None",
        (OF_GENERATE,),
    ),
    Mutant(
        "a refused prompt ends the call",
        SERVING,
        'begun.append(Answer("", [], "error", error=error))',
        "raise error",
        (OF_GENERATE,),
    ),
    Mutant(
        "what is left goes on to its end",
        SERVING,
        "self._left.extend(mailbox for mailbox in begun if isinstance(mailbox, Mailbox) and mailbox.open)",
        "self._left.extend(())",
        (OF_STREAM, OF_ASYNC),
    ),
    Mutant(
        "memory for all slots at once",
        "spec_sdk/engine/token_engine.py",
        "min(self.slots, self.scheduler.requests + 1)",
        "self.slots",
        (OF_GENERATE,),
    ),
    Mutant(
        "the program's config store is seen",
        LOADER,
        'if name == "hydra" or name.startswith("_")',
        "if name",
        (OF_HYDRA,),
    ),
    Mutant(
        "the program's version base is lost",
        LOADER,
        "        base.version_base = before",
        "        pass",
        (OF_HYDRA,),
    ),
)
