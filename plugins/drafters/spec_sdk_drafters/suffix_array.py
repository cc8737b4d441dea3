"""A suffix array: where the suffixes of a text begin, sorted by their first tokens.

Legend: N tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint32]


def suffix_array(token_N: Tokens, depth: int) -> Tokens:
    """The places 0 … N - 1 of a text, sorted by the ``depth`` tokens that begin there, or a few more.

    Prefix doubling (Manber and Myers 1993): what is sorted by k tokens is sorted by 2k by the ranks at a place and k
    after it, until no two places are alike or they are alike over ``depth`` tokens. A text that ends is less than one
    that goes on. Takes some 40 bytes a token besides the result. Raises ValueError for a text of 2^32 tokens or more.
    """
    if len(token_N) >= 1 << 32:
        raise ValueError(f"a text of {len(token_N)} tokens is too long: 2^32 - 1 are the most")
    rank_N = token_N.astype(np.int64)
    order_N = np.argsort(rank_N)
    rank_N = _ranks(rank_N, order_N)
    sorted_by = 1
    while sorted_by < depth and len(token_N) and int(rank_N[order_N[-1]]) < len(token_N) - 1:
        key_N = rank_N * (len(token_N) + 1)
        key_N[:-sorted_by] += rank_N[sorted_by:] + 1
        order_N = np.argsort(key_N)
        rank_N = _ranks(key_N, order_N)
        sorted_by *= 2
    return order_N.astype(np.uint32)


def _ranks(key_N: npt.NDArray[np.int64], order_N: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The rank of each key among the different ones, by the order that sorts them."""
    sorted_N = key_N[order_N]
    rank_N = np.zeros(len(key_N), np.int64)
    rank_N[order_N[1:]] = np.cumsum(sorted_N[1:] != sorted_N[:-1])
    return rank_N
