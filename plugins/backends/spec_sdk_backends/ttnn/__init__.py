"""backend=ttnn: the decode path on Tenstorrent's TT-NN, or on the functional simulator of TT-Lang."""
