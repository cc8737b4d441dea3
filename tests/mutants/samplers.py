"""Wrong arithmetic of samplers and of what rejections leave, and a wrong repetition penalty."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

REFERENCE = "plugins/samplers/spec_sdk_samplers/reference.py"
EXACT = "plugins/samplers/spec_sdk_samplers/exact.py"
CANDIDATES = "plugins/samplers/spec_sdk_samplers/candidates.py"
INVERSION = "spec_sdk/ops/inversion.py"
ACCEPTANCE = "spec_sdk/ops/acceptance.py"
PIECES = "spec_sdk/ops/pieces.py"
RESIDUAL = "spec_sdk/ops/residual.py"
ROWS = "spec_sdk/ops/rows.py"
CONTRACT = "spec_sdk/contracts/sampler.py"
KIT = "spec_sdk/testing/samplers.py"
OF_THE_KIT = "tests/losslessness/test_conformance.py::test_faulty_distributions_of_ones_own_are_found_out"
OF_REFERENCE = "tests/losslessness/test_sampler.py"
ARITHMETIC = "tests/losslessness/test_arithmetic.py"
EQUAL = "tests/samplers/test_equal_tokens.py"
REMEMBERED = f"{EQUAL}::test_a_distribution_drawn_from_in_both_ways"
EDGES = "tests/samplers/test_edges.py"
OF_CANDIDATES = "tests/samplers/test_candidates.py"
OF_EXACT = "tests/samplers/test_losslessness.py"
TOGETHER = "tests/samplers/test_decided_together.py"
RANDOM_TREES = f"{EQUAL}::test_random_trees"
EVERY_DRAW = f"{EQUAL}::test_every_draw_is_judged_by_what_the_ones_before_left"

SAMPLERS = (
    Mutant(
        "top-k loses the k-th",
        REFERENCE,
        "score_NV < kth_N1",
        "score_NV <= kth_N1",
        (OF_REFERENCE,),
    ),
    Mutant(
        "greedy choices of unusable logits",
        REFERENCE,
        "            token_N[row] = -1\n",
        "            pass\n",
        (f"{OF_REFERENCE}::test_choices_are_those_made_in_a_pass",),
    ),
    Mutant(
        "top-p loses the token at its border",
        REFERENCE,
        "before_NK >= top_p",
        "before_NK + p_NK >= top_p",
        (OF_REFERENCE,),
    ),
    Mutant(
        "min-p is no share of the largest",
        REFERENCE,
        "self.params.min_p * p_NV.amax(-1, keepdim=True)",
        "self.params.min_p",
        (OF_REFERENCE,),
    ),
    Mutant(
        "filtered probabilities do not sum to 1",
        REFERENCE,
        "return p_NV / p_NV.sum(-1, keepdim=True)",
        "return p_NV",
        (OF_REFERENCE,),
    ),
    Mutant(
        "a draw of 0 gives a token without mass",
        INVERSION,
        "from bisect import bisect_right",
        "from bisect import bisect_left as bisect_right",
        (EDGES,),
    ),
    Mutant(
        "mass that does not sum to 1 is drawn from as if it did",
        INVERSION,
        "goal = uniform * whole",
        "goal = uniform",
        (EDGES,),
    ),
    Mutant(
        "a drawn token is accepted with p",
        RESIDUAL,
        "return uniform * q < p",
        "return uniform < p",
        (ARITHMETIC,),
    ),
    Mutant(
        "a token without mass may be accepted",
        RESIDUAL,
        "return uniform * q < p",
        "return uniform * q <= p",
        (EDGES,),
    ),
    Mutant(
        "the residual is the distance",
        PIECES,
        "torch.sub(p, q, out=out).clamp_min_(0.0)",
        "torch.sub(p, q, out=out).abs_()",
        (ARITHMETIC,),
    ),
    Mutant(
        "the residual does not sum to 1",
        RESIDUAL,
        "return out_V if _normalise(out_V) else p_V",
        "return out_V if total(out_V) > 0 else p_V",
        (ARITHMETIC,),
    ),
    Mutant(
        "what is left without a token does not sum to 1",
        RESIDUAL,
        "if not (_normalise(p_V) if normalised else total(p_V) > 0):",
        "if not total(p_V) > 0:",
        (ARITHMETIC,),
    ),
    Mutant(
        "what is left without a chosen token does not sum to 1 for the next draw",
        ROWS,
        "normalised=not last",
        "normalised=False",
        (EVERY_DRAW, RANDOM_TREES),
    ),
    Mutant(
        "the rule accepts a drawn token with p",
        ACCEPTANCE,
        "left.q(drawn), uniforms[i]",
        "1.0, uniforms[i]",
        (EVERY_DRAW, RANDOM_TREES),
    ),
    Mutant(
        "a rejection takes away q with the tokens that were drawn before",
        ROWS,
        "return self.rows.draft(draw, self.node) if self._q_V is None else self._q_V",
        "return self.rows.draft(draw, self.node)",
        (EVERY_DRAW, RANDOM_TREES),
    ),
    Mutant(
        "a distribution that is NaN in part: the target is blamed",
        ROWS,
        "if self._rejected is not None and self._less_V is not None",
        "if self._rejected is None and self._less_V is not None",
        (
            "tests/losslessness/test_verifiers.py::test_a_distribution_that_is_nan_beside_its_token_is_its_drafters_fault",
        ),
    ),
    Mutant(
        "the target is not reduced by a rejected draw",
        ROWS,
        "        self.p_V = left_V\n",
        "",
        (EVERY_DRAW, RANDOM_TREES),
    ),
    Mutant(
        "the next token may be the rejected one",
        INVERSION,
        "part_V = mass_V[inside] if less_V is None else (mass_V[inside] - less_V[inside]).clamp_min_(0.0)",
        "part_V = mass_V[inside]",
        (RANDOM_TREES,),
    ),
    Mutant(
        "a node takes the random numbers from its own number on",
        ACCEPTANCE,
        "numbers[first_N1[node] :]",
        "numbers[node:]",
        (RANDOM_TREES,),
    ),
    Mutant(
        "exact: two rows in one place",
        EXACT,
        'q_V = self.sampler.row_distribution(source.logits_V, 0, "q")',
        'q_V = self.sampler.row_distribution(source.logits_V, 0, "p")',
        (RANDOM_TREES,),
    ),
    Mutant(
        "exact: a probability remembered from a draw serves for what is left of q",
        ROWS,
        "self.rows.known(draw) if self._q_V is None else None",
        "self.rows.known(draw)",
        (REMEMBERED,),
    ),
    Mutant(
        "a draw is judged by the q of the one before",
        ROWS,
        "        self._q_V = None\n        if draw",
        "        if draw",
        (EVERY_DRAW, RANDOM_TREES),
    ),
    Mutant(
        "exact: the rows of a chain in one place",
        ROWS,
        "return row_V.clone()",
        "return row_V",
        ("tests/losslessness/test_exact_enumeration.py::test_block_verification_with_rows_that_lie_in_one_place",),
    ),
    Mutant(
        "together: a fault is counted from the first tree of the launch",
        "plugins/backends/spec_sdk_backends/fused_multi_step.py",
        "return UnusableLogits(fault - self._first_node[b])",
        "return UnusableLogits(fault)",
        (TOGETHER,),
    ),
    Mutant(
        "together: the first request's sampling for all",
        "plugins/backends/spec_sdk_backends/fused_multi_step.py",
        "return (*sampling, logits_NV.dtype,",
        "return (logits_NV.dtype,",
        (TOGETHER,),
    ),
    Mutant(
        "exact: top-p loses the token at its border",
        CANDIDATES,
        "before_K >= top_p",
        "before_K + sorted_K >= top_p",
        (OF_CANDIDATES,),
    ),
    Mutant(
        "exact: top-k looks into too few tiles",
        CANDIDATES,
        "most_T >= most_K[-1]",
        "most_T > most_K[-1]",
        (OF_CANDIDATES,),
    ),
    Mutant(
        "exact: the place in a tile is counted from the row's start",
        INVERSION,
        "cdf_T[tile - 1] if tile else 0.0",
        "0.0",
        ("tests/samplers/test_pieces.py",),
    ),
    Mutant(
        "penalty: a token of the prompt that is drafted again is penalised twice",
        CONTRACT,
        "{*path} - common",
        "{*path}",
        (f"{OF_EXACT}::test_the_repetition_penalty_by_enumeration",),
    ),
    Mutant(
        "penalty: a negative logit is divided too",
        CONTRACT,
        "torch.where(score < 0, score * penalty, score / penalty)",
        "score / penalty",
        (f"{OF_EXACT}::test_the_penalty_is_that_of_transformers",),
    ),
    Mutant(
        "conformance: a sampler's own distribution may be negative somewhere",
        KIT,
        "abs(total - 1) < TOLERANCE and least >= 0",
        "abs(total - 1) < TOLERANCE",
        (OF_THE_KIT,),
    ),
    Mutant(
        "conformance: a sampler's own distribution may look at other rows",
        KIT,
        "alone_V = sampler.probabilities(logits_NV[row : row + 1])[0]",
        "alone_V = p_V",
        (OF_THE_KIT,),
    ),
    Mutant(
        "conformance: the tokens that are named are not those that are wrong",
        "spec_sdk/testing/enumeration.py",
        "    worst = int(off.argmax())",
        "    worst = int(off.argmin())",
        ("tests/losslessness/test_conformance_words.py",),
    ),
)
