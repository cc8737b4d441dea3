"""Does a constraint's matcher say the same of a place however it came there, and is its mask all that it says?

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import NoReturn

import torch

from spec_sdk.contracts import AnyTokens, Constraint, Matcher
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.testing.check import Check, run_checks

ANSWERS, LENGTH = 6, 24
"""Random answers that are followed, and their longest length in tokens."""


def check_constraint(constraint: Constraint, tokenizer: Tokenizer, vocabulary: int, *, answers: int = ANSWERS) -> None:
    """Raise AssertionError unless what ``constraint`` compiles to is a sound matcher.

    Random answers are followed, with drafted paths behind them that go astray now and then: every mask leaves some
    token, is the same whether its tokens are an answer, a path or a bit of both, whatever was asked before, and in rows
    of other types and widths; nothing but -inf is written to logits unless the constraint biases them; ``allows`` says
    what the mask says, and ``forced``, asked again behind what it forces, names tokens that are the only ones of it,
    both after an answer and behind drafted tokens; answers beside one another do not see each other.
    """
    run_checks(constraint_checks(constraint, tokenizer, vocabulary, answers=answers))


def constraint_checks(
    constraint: Constraint, tokenizer: Tokenizer, vocabulary: int, *, answers: int = ANSWERS
) -> list[Check]:
    """The checks of :func:`check_constraint`, one by one."""
    made: object = constraint.compile(tokenizer, vocabulary)
    if isinstance(made, AnyTokens):
        return [Check("compiles: it rules nothing out", lambda: None)]
    if not isinstance(made, Matcher):
        return [Check("compiles to a matcher", lambda: _no_matcher("compile", made))]
    first = made

    @functools.cache
    def at_first_V() -> torch.Tensor:
        return _mask(_begun(first), [], [[]], vocabulary)[0]

    @functools.cache
    def walks() -> list[list[int]]:
        return [_walk(first, vocabulary, random.Random(seed)) for seed in range(answers)]

    def masks_leave_a_token() -> str:
        # before an answer is followed: what comes after is compared with it
        at_first_V()
        return f"answers of {', '.join(str(len(walk)) for walk in walks())} tokens"

    def same_however() -> str:
        compared = 0
        for seed, walk in enumerate(walks()):
            used, rng = _begun(first), random.Random(seed)
            for end in range(len(walk) + 1):
                answer, ahead = walk[:end], walk[end : end + rng.randrange(4)]
                paths = [ahead[:n] for n in range(len(ahead) + 1)]
                if ahead:
                    astray = rng.randrange(vocabulary)
                    paths += [[*ahead[:-1], astray]] if _begun(first).allows(answer, ahead[:-1], astray) else []
                rng.shuffle(paths)
                found_NV = _mask(used, answer, paths, vocabulary)
                for row, path in enumerate(paths):
                    for before in {0, len(answer)}:
                        whole = [*answer, *path]
                        fresh_V = _mask(_begun(first), whole[:before], [whole[before:]], vocabulary)[0]
                        assert torch.equal(found_NV[row], fresh_V), (
                            f"after the answer {answer} and the drafted tokens {path} its mask "
                            f"{_difference(found_NV[row], fresh_V)} where the same tokens were given as an answer of "
                            f"{before} tokens and a path"
                        )
                        compared += 1
        again_V = _mask(_begun(first), [], [[]], vocabulary)[0]
        assert torch.equal(at_first_V(), again_V), "after other answers were followed, new ones begin with another mask"
        return f"{compared} masks"

    def allows_and_forced() -> str:
        forced = 0
        for seed, walk in enumerate(walks()):
            matcher, rng = _begun(first), random.Random(seed)
            for end in range(len(walk) + 1):
                answer, ahead = walk[:end], walk[end : end + rng.randrange(4)]
                for path in [[], ahead] if ahead else [[]]:
                    following = walk[end + len(path) :][:1]
                    check_allowed(matcher, answer, path, {rng.randrange(vocabulary) for _ in range(8)}.union(following))
                    forced += check_forced(matcher, answer, path)
        return f"{forced} places with forced tokens"

    def left_after(answer: Sequence[int], path: Sequence[int]) -> list[int]:
        left: list[int] = _mask(_begun(first), answer, [path], vocabulary)[0].nonzero().flatten().tolist()
        return left

    def check_allowed(matcher: Matcher, answer: Sequence[int], path: Sequence[int], tokens: set[int]) -> None:
        left = left_after(answer, path)
        for token in tokens:
            assert matcher.allows(answer, path, token) or token not in left, (
                f"{_after(answer, path)} token {token} is in the mask, and not allowed"
            )

    def check_forced(matcher: Matcher, answer: Sequence[int], path: Sequence[int]) -> bool:
        """The run is followed as an engine follows it: until nothing is forced, or the answer ends."""
        run = list[int]()
        while len(run) < LENGTH and (following := matcher.forced(answer, [*path, *run])):
            for token in following:
                left = left_after(answer, [*path, *run])
                where = f"{_after(answer, [*path, *run])} it says that token {token} is forced"
                assert token in left, f"{where}, which its mask rules out"
                assert len(left) == 1, f"{where}, and its mask leaves {len(left)} tokens"
                run.append(token)
                if token in tokenizer.stop_ids:
                    return True
        return bool(run)

    def rows_of_other_kinds() -> str:
        mask_V = _mask(_begun(first), [], [[]], vocabulary)[0]
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for width in (vocabulary, vocabulary + 5, max(1, vocabulary // 2)):
                logits_NV = torch.zeros(2, width, dtype=dtype)
                _apply(_begun(first), logits_NV, [], [[], []])
                assert torch.equal(logits_NV[0], logits_NV[1]), "two rows of one place differ"
                left_V = logits_NV[0].isfinite()
                common = min(width, vocabulary)
                assert torch.equal(left_V[:common], mask_V[:common]), f"the mask of {width} {dtype} logits differs"
                assert not logits_NV.isnan().any() and not logits_NV.isposinf().any(), f"{dtype}: NaN or +inf"
        # a model may have fewer outputs than its tokenizer has tokens
        token = int(mask_V.nonzero().max())
        _apply(_begun(first), torch.zeros(1, max(1, token)), [], [[token]])
        return "3 types, 3 widths"

    return [
        Check("masks leave a token after every token that they left", masks_leave_a_token),
        Check("a place's mask is the same however it was come to", same_however),
        Check("what is allowed and what is forced agree with the mask", allows_and_forced),
        Check("rows of other types and widths", rows_of_other_kinds),
    ]


def _difference(left_V: torch.Tensor, other_V: torch.Tensor) -> str:
    """A token that only one of two different masks leaves."""
    token = int((left_V != other_V).nonzero()[0])
    return f"{'leaves' if left_V[token] else 'rules out'} token {token}, and does not"


def _mask(matcher: Matcher, answer: Sequence[int], paths: Sequence[Sequence[int]], vocabulary: int) -> torch.Tensor:
    """The tokens that are left after each path, booleans [N, V]."""
    logits_NV = torch.zeros(len(paths), vocabulary)
    _apply(matcher, logits_NV, answer, paths)
    return logits_NV.isfinite()


def _apply(matcher: Matcher, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
    returned: object = matcher.apply(logits_NV, answer, paths)
    if returned is logits_NV:
        # as what works in place does
        return
    what = repr(returned)
    if isinstance(returned, torch.Tensor):
        view = returned.untyped_storage().data_ptr() == logits_NV.untyped_storage().data_ptr()
        what = "a view of its logits" if view else "other logits"
    assert returned is None, (
        f"apply returned {what}, which nobody reads: it is to write -inf to the logits that it is given"
    )


def _begun(first: Matcher) -> Matcher:
    """A matcher for another answer."""
    begun: object = first.begin()
    return begun if isinstance(begun, Matcher) else _no_matcher("begin", begun)


def _no_matcher(method: str, returned: object) -> NoReturn:
    raise AssertionError(f"its {method} returned {returned!r}, which is no matcher")


def _after(answer: Sequence[int], path: Sequence[int]) -> str:
    return f"after {list(answer)} and the drafted tokens {list(path)}" if path else f"after {list(answer)}"


def _walk(first: Matcher, vocabulary: int, rng: random.Random) -> list[int]:
    """A random answer, of tokens that the masks leave."""
    matcher, answer = _begun(first), list[int]()
    while len(answer) < LENGTH:
        left = _mask(matcher, answer, [[]], vocabulary)[0].nonzero().flatten().tolist()
        assert left, f"after the tokens {answer} no token is left"
        answer.append(rng.choice(left))
    return answer
