"""Speech as a model's input: sound files, log-mel features, prompts of transcriptions, and how right they are."""
