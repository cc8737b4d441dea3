"""Rows that the native kernels make of logits, and what is drawn of them, gone wrong."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

NATIVE = "plugins/backends/spec_sdk_backends/native/"
MASS = NATIVE + "source/mass.h"
GROWING = NATIVE + "source/growing.h"
VERDICTS = NATIVE + "verdicts.py"
EXACT = "plugins/samplers/spec_sdk_samplers/exact.py"
DRAFTER = "plugins/drafters/spec_sdk_drafters/growing_drafter.py"
OF_ROWS = ("tests/native/test_mass.py",)
OF_VERDICTS = ("tests/native/test_verdicts.py",)
OF_DRAWS = ("tests/native/test_draws.py",)
OF_CHAINS = ("tests/native/test_drawn_chains.py",)

NATIVE_SAMPLING: tuple[Mutant, ...] = (
    Mutant("native rows: NaN is passed over", MASS, "unusable[l] |= x != x;", "", OF_ROWS),
    Mutant(
        "native rows: tokens that the target lacks are counted",
        MASS,
        "return !token || has(token[i]) ? to_float",
        "return true ? to_float",
        OF_ROWS,
    ),
    Mutant(
        "native rows: the temperature multiplies",
        MASS,
        "std::max(1 / std::max(shaping",
        "std::max(std::max(shaping",
        OF_ROWS,
    ),
    Mutant(
        "native rows: top-k keeps one less",
        MASS,
        "x.begin() + (k - 1), x.end()",
        "x.begin() + (k - 2), x.end()",
        OF_ROWS,
    ),
    Mutant(
        "native rows: top-k loses what ties with the k-th",
        MASS,
        "return x >= least ? exponential",
        "return x > least ? exponential",
        OF_ROWS,
    ),
    Mutant(
        "native rows: top-p loses the token at its border",
        MASS,
        "before += x->mass, x++) border",
        "before += x->mass, x++) if (before + x->mass < goal) border",
        OF_ROWS,
    ),
    Mutant(
        "native rows: of equals top-p keeps the last ones",
        MASS,
        ": a.token < b.token;",
        ": a.token > b.token;",
        OF_ROWS,
    ),
    Mutant(
        "native rows: min-p goes before top-p",
        MASS,
        "if (float(shaping.min_p) > border.least)",
        "if (shaping.min_p > 0)",
        OF_ROWS,
    ),
    Mutant(
        "native rows: what is drawn lies a tile before",
        MASS,
        "tile = t, before_tile = before;",
        "tile = t, before_tile = before + mass.sums[t];",
        OF_ROWS,
    ),
    Mutant("native rows: a token without mass is drawn", MASS, "if (mass.of[i] > 0) token = i;", "token = i;", OF_ROWS),
    Mutant(
        "native rows: what a rejection leaves is not normalised first",
        MASS,
        "p.of[i] * per_p - q.of[i] * per_q",
        "p.of[i] - q.of[i]",
        OF_ROWS,
    ),
    Mutant(
        "native rows: the only token is taken away",
        MASS,
        "for (float kept : {0.0f, own}) {",
        "for (float kept : {0.0f}) {",
        OF_ROWS,
    ),
    Mutant(
        "native verdicts: a rejected draw is left in q",
        VERDICTS,
        "            q.remove(token)\n",
        "",
        OF_VERDICTS,
    ),
    Mutant(
        "native verdicts: a rejected chosen token is left in p",
        VERDICTS,
        "            self._p.remove(token)\n",
        "",
        OF_VERDICTS,
    ),
    Mutant(
        "native verdicts: draws of another sequence come from what one has left",
        VERDICTS,
        "self._q = self._rest.get(draw.sequence)",
        "self._q = next(iter(self._rest.values()), None)",
        OF_VERDICTS,
    ),
    Mutant(
        "native verdicts: probabilities that are given are logits",
        VERDICTS,
        "isinstance(source, DraftDistribution) and source.made is None and takes(source.logits)",
        "isinstance(source, DraftDistribution) and takes(source.logits)",
        (*OF_VERDICTS, *OF_DRAWS),
    ),
    Mutant(
        "native draws: the second of different tokens is remembered as the first",
        EXACT,
        "if len(tokens) == 1:\n",
        "if len(tokens) == count:\n",
        OF_DRAWS,
    ),
    Mutant(
        "native draws: a sampler with rows of its own draws by the kernels",
        EXACT,
        "self.recipe is None or distribution",
        "distribution",
        OF_DRAWS,
    ),
    Mutant(
        "drawn chains: every level takes the first random number",
        GROWING,
        "_growing.uniform[node]",
        "_growing.uniform[0]",
        OF_CHAINS,
    ),
    Mutant(
        "drawn chains: in the order of their logits",
        GROWING,
        "{logits, _growing.token_of, _columns, mass.tokens}",
        "{logits, nullptr, _columns, mass.tokens}",
        OF_CHAINS,
    ),
    Mutant(
        "drawn chains: a refusal takes random numbers",
        DRAFTER,
        "        if grown is None or grown[0].root.drawn_KW is None:\n            request.rng.set_state(state)\n",
        "",
        OF_CHAINS,
    ),
    Mutant(
        "drawn chains: the draft's own temperature is passed over",
        NATIVE + "growing.py",
        "draws.shaping.temperature * draws.temperature",
        "draws.shaping.temperature",
        OF_CHAINS,
    ),
)
