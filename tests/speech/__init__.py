"""Speech: Whisper as an encoder-decoder in the same engine."""
