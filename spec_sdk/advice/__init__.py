"""Which pipeline is fastest here: short probes of several, a prediction for every shape of tree, and its check."""
