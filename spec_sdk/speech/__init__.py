"""Speech as a model's input: WAV files, log-mel features, and what a transcription's prompt consists of."""
