"""Operations in TT-Lang: those of the decode path that the simulator's ttnn lacks.

Tensors have two dimensions and whole tiles of 32 × 32; indices and shapes below count tiles.
"""
