"""A request that hears another's sound, or none anew; places, frames and constraints that are off by one."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MODEL = "tests/speech/test_whisper_model.py"
PIPELINES = "tests/speech/test_whisper_pipelines.py"
WINDOWS = "tests/speech/test_windows.py"
SHARED = "tests/speech/test_shared_encoder.py"
TRANSCRIBER = "tests/speech/test_transcriber.py"
ERRORS = "tests/accuracy/test_word_errors.py"
TASK = "tests/speech/test_transcribe_task.py"

SPEECH = (
    Mutant(
        "cross-attention: to the request's place in the batch, not its slot",
        "spec_sdk/ops/cross_attention.py",
        "own = slice(part.slot, part.slot + 1)",
        "own = slice(part.index, part.index + 1)",
        (f"{MODEL}::test_trees_of_requests_with_sounds_of_their_own",),
    ),
    Mutant(
        "whisper: no cross-attention's residual",
        "spec_sdk/model/whisper_decoder.py",
        "h_BNM = h_BNM + self._cross_attention(layer, h_BNM)",
        "h_BNM = self._cross_attention(layer, h_BNM)",
        (f"{MODEL}::test_prefill_then_token_by_token",),
    ),
    Mutant(
        "whisper: a node's position is its place in the tree",
        "spec_sdk/model/whisper_decoder.py",
        "F.embedding(inputs.position_BN, self.positions_CM)",
        "F.embedding(inputs.prefix_B[:, None] + inputs.query_start_BN, self.positions_CM)",
        (f"{MODEL}::test_trees_of_requests_with_sounds_of_their_own",),
    ),
    Mutant(
        "session: a kept prefix is used beside any sound",
        "spec_sdk/model/session.py",
        "            return 0\n        shared = common_prefix",
        "            pass\n        shared = common_prefix",
        (f"{MODEL}::test_a_kept_prefix_is_used_beside_the_same_sound_only",),
    ),
    Mutant(
        "encoder input: encoded again for every model",
        "spec_sdk/model/encoder_input.py",
        "if encode not in self._states:",
        "if True:",
        (f"{MODEL}::test_a_cut_decoder_shares_the_encoder_and_its_states",),
    ),
    Mutant(
        "log-mel: the first frame is dropped, not the last",
        "spec_sdk/speech/log_mel.py",
        "[:, :-1]",
        "[:, 1:]",
        ("tests/speech/test_features.py::test_features_are_those_of_transformers",),
    ),
    Mutant(
        "constraint: the draft model's first row goes without",
        "plugins/drafters/spec_sdk_drafters/growing_drafter.py",
        "else request.process_draft(logits.within(self.vocabulary), [()])",
        "else logits.within(self.vocabulary)",
        (f"{PIPELINES}::test_a_constraint_holds_in_target_and_draft",),
    ),
    Mutant(
        "constraint: a path from the node to the root",
        "plugins/drafters/spec_sdk_drafters/growing_draft.py",
        "paths.append(path[::-1])",
        "paths.append(path)",
        (f"{PIPELINES}::test_a_draft_model_s_paths_lead_from_the_root",),
    ),
    Mutant(
        "constraint: the prompt is taken for the answer",
        "spec_sdk/contracts/request.py",
        "constraint, answer = self._state.constraint, self.tokens[self.prompt_length :]",
        "constraint, answer = self._state.constraint, self.tokens[:]",
        (f"{PIPELINES}::test_a_constraint_is_asked_about_every_node_by_its_path",),
    ),
    Mutant(
        "constraint: what may not begin an answer may not begin a step",
        "spec_sdk/contracts/constraint.py",
        "first = [] if answer else [row",
        "first = [row",
        (f"{PIPELINES}::test_suppressed_tokens_row_by_row",),
    ),
    Mutant(
        "windows: a cut where it is loudest",
        "spec_sdk/speech/windows.py",
        "loudness_C.flip(0).argmin()",
        "loudness_C.flip(0).argmax()",
        (f"{WINDOWS}::test_a_pause_is_found", f"{WINDOWS}::test_the_quietest_of_two_pauses"),
    ),
    Mutant(
        "windows: a pause counted from the wrong side",
        "spec_sdk/speech/windows.py",
        "place = len(loudness_C) - 1 - int(",
        "place = int(",
        (f"{WINDOWS}::test_silence_is_cut_late", f"{WINDOWS}::test_the_quietest_of_two_pauses"),
    ),
    Mutant(
        "windows: samples between two windows are lost",
        "spec_sdk/speech/windows.py",
        "        begin = end\n",
        "        begin = end + HOP\n",
        (f"{WINDOWS}::test_windows_lie_side_by_side",),
    ),
    Mutant(
        "shared encoder: any of the same size",
        "spec_sdk/model/shared_encoder.py",
        "    if not same_encoder(target_source, draft_source):\n        return False\n",
        "",
        (f"{SHARED}::test_another_encoder_is_kept",),
    ),
    Mutant(
        "shared encoder: its matrices alone are compared",
        "spec_sdk/model/shared_encoder.py",
        'return [name for name in table.shapes if table.entry(name).row.role.startswith("encoder_")]',
        'return [n for n in table.shapes if table.entry(n).row.role.startswith("encoder_") and n.endswith("weight")]',
        (f"{SHARED}::test_another_encoder_is_kept",),
    ),
    Mutant(
        "transcriber: the first words of the transcript are told, not the last",
        "spec_sdk/speech/transcriber.py",
        "*before[-most:]",
        "*before[:most]",
        (f"{TRANSCRIBER}::test_what_was_transcribed_is_told_to_the_next_window",),
    ),
    Mutant(
        "transcriber: nothing is suppressed",
        "spec_sdk/speech/transcriber.py",
        "suppressed = self.tokens.suppressed()",
        "suppressed = type(self.tokens.suppressed())()",
        (f"{TRANSCRIBER}::test_what_is_suppressed_is_not_said",),
    ),
    Mutant(
        "word errors: the mean of rates",
        "spec_sdk/accuracy/word_errors.py",
        "sum(each.words for each in every)",
        "max(each.words for each in every)",
        (f"{ERRORS}::test_a_total_is_of_words_and_no_mean_of_rates",),
    ),
    Mutant(
        "word errors: the transcript is the reference",
        "spec_sdk/accuracy/word_errors.py",
        "process_words(said, written)",
        "process_words(written, said)",
        (f"{ERRORS}::test_edits",),
    ),
    Mutant(
        "work times: sampling counts twice",
        "spec_sdk/speech/work_times.py",
        'event["verify_s"] - event["verdict_s"]',
        'event["verify_s"]',
        (f"{TASK}::test_one_file",),
    ),
    Mutant(
        "transcribe: the language of a line is passed over",
        "spec_sdk/tasks/transcribe.py",
        "recording.language or app.language, self.config.cut",
        "app.language, self.config.cut",
        (f"{TASK}::test_pipelines_beside_plain_decoding",),
    ),
)
