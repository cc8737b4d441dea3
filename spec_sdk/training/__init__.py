"""Training draft models on the target's own answers: what ``task=train_draft`` is made of."""
