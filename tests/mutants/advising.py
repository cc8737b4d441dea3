"""Advice that misreads probes, costs or what limits a pipeline."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RECUTTING = "spec_sdk/advice/recutting.py"
COSTS = "spec_sdk/advice/costs.py"
PREDICTING = "spec_sdk/advice/predicting.py"
CHOOSING = "spec_sdk/advice/choosing.py"
PROBING = "spec_sdk/advice/probing.py"
LIMITS = "spec_sdk/advice/limits.py"
OF_RECUTTING = "tests/advice/test_recutting.py"
OF_COSTS = "tests/advice/test_costs.py"
OF_PREDICTIONS = "tests/advice/test_predictions.py"
OF_LIMITS = "tests/advice/test_limits.py"

ADVISING = (
    Mutant(
        "a rank counts where the level has no room for it",
        RECUTTING,
        "chance(min(shape.width, sizes[kept]), ranks)",
        "chance(shape.width, ranks)",
        (OF_RECUTTING,),
    ),
    Mutant(
        "a token that was not asked for counts as one that the drafter missed",
        RECUTTING,
        "rank, missed = None, 0 if i == cycle.asked else None",
        "rank, missed = None, None",
        (OF_RECUTTING,),
    ),
    Mutant(
        "what smaller trees answered is read like the deep ones",
        RECUTTING,
        "rank, missed = None, None if deep else cycle.level_sizes[i]",
        "rank, missed = None, None",
        (OF_RECUTTING,),
    ),
    Mutant(
        "cycles with smaller trees say how often tokens are had",
        RECUTTING,
        "if cycle.asked < deepest:",
        "if False:",
        (OF_RECUTTING, OF_PREDICTIONS),
    ),
    Mutant(
        "trees are granted more levels than tokens are left",
        RECUTTING,
        "min(shape.depth, most_tokens - at - 1)",
        "shape.depth",
        (OF_RECUTTING, OF_PREDICTIONS),
    ),
    Mutant(
        "plain decoding is timed prompt by prompt, and what is beside it is not",
        PREDICTING,
        "verify.at(c.nodes, c.prefix) for c in self.plain[i])",
        "VerifyCosts(curve, self.plain[i]).at(c.nodes, c.prefix) for c in self.plain[i])",
        (OF_PREDICTIONS,),
    ),
    Mutant(
        "a pipeline's steps over one node are taken to cost what plain decoding's do",
        COSTS,
        "if sum(cycle.nodes == 1 for cycle in cycles) < OWN_SAMPLES:",
        "if True:",
        (OF_PREDICTIONS,),
    ),
    Mutant(
        "an interrupted pass counts in full",
        COSTS,
        "cut = len(samples) // 4",
        "cut = 0",
        (OF_COSTS,),
    ),
    Mutant(
        "small trees are taken to cost what plain steps do",
        COSTS,
        "self._trees = [point for point in points if point[0] > 1] or points",
        "self._trees = points",
        (OF_COSTS, OF_PREDICTIONS),
    ),
    Mutant(
        "parts of drafting may be negative",
        COSTS,
        "if bool((x >= 0).all()) and left",
        "if left",
        (OF_COSTS,),
    ),
    Mutant(
        "drafting is taken to be free",
        PREDICTING,
        "draft_s = draft.at(piece.levels, piece.nodes) if piece.asked else 0.0",
        "draft_s = 0.0",
        (OF_PREDICTIONS,),
    ),
    Mutant(
        "the slowest shape comes first",
        PREDICTING,
        "return sorted(found, key=lambda prediction: sum(prediction.seconds.values()))",
        "return sorted(found, key=lambda prediction: -sum(prediction.seconds.values()))",
        (OF_PREDICTIONS,),
    ),
    Mutant(
        "adaptive is taken to lose nothing",
        PREDICTING,
        "i: (1 + ADAPTIVE_LOSS) * min(",
        "i: min(",
        (OF_PREDICTIONS,),
    ),
    Mutant(
        "what beats plain decoding by nothing is advised",
        CHOOSING,
        "return best[1] if best[0] >= 1 + MARGIN else None",
        "return best[1] if best[0] > 0 else None",
        (OF_PREDICTIONS,),
    ),
    Mutant(
        "predictions count where measurements are there",
        CHOOSING,
        "[(each.speedup, each.name) for each in verified] or",
        "",
        (OF_PREDICTIONS,),
    ),
    Mutant(
        "where passes are dear a chain is probed",
        PROBING,
        "return Shape(depth, max(2, (nodes - 1) // depth))",
        "return Shape(DEEPEST, max(1, (nodes - 1) // DEEPEST))",
        (OF_PREDICTIONS,),
    ),
    Mutant(
        "the smallest cost is named first",
        LIMITS,
        "told.sort(key=lambda limit: -limit.without)",
        "told.sort(key=lambda limit: limit.without)",
        (OF_LIMITS,),
    ),
    Mutant(
        "low acceptance is not told of first",
        LIMITS,
        "return [acceptance, *told] if low else [*told, acceptance]",
        "return [*told, acceptance]",
        (OF_LIMITS,),
    ),
)
