"""Lookahead windows that see or pool something else, and datastores that count or find wrongly."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

DRAFTERS = "plugins/drafters/spec_sdk_drafters"
WINDOW = f"{DRAFTERS}/lookahead_window.py"
LOOKAHEAD = f"{DRAFTERS}/lookahead.py"
POOL = f"{DRAFTERS}/ngram_pool.py"
ARRAY = f"{DRAFTERS}/suffix_array.py"
STORE = f"{DRAFTERS}/datastore.py"
FILE = f"{DRAFTERS}/datastore_file.py"
SOURCE = f"{DRAFTERS}/datastore_source.py"
OF_LOOKAHEAD = "tests/drafters/test_lookahead.py"
OF_STORE = "tests/drafters/test_datastore.py"
COUNTED = f"{OF_STORE}::test_look_ups_find_what_counting_finds"

LOOKUPS = (
    Mutant(
        "lookahead: trajectories hang below the root, and see no row 0",
        WINDOW,
        "            node = spine\n            for row in self.rows[1:]:\n                node = grown(",
        "            node = 0\n            for row in self.rows[1:]:\n                node = grown(",
        (f"{OF_LOOKAHEAD}::test_the_comb_is_the_mask_of_the_authors_figure",),
    ),
    Mutant(
        "lookahead: a full window stays a column behind",
        WINDOW,
        "self.rows = rows[1:] if full else [row[1:] for row in rows]",
        "self.rows = [row[1:] for row in rows[1:]] if full else [row[1:] for row in rows]",
        (f"{OF_LOOKAHEAD}::test_a_full_window_moves_on_by_a_row_and_gives_an_ngram_for_every_column",),
    ),
    Mutant(
        "lookahead: a window that fills does not move on",
        WINDOW,
        "self.rows = rows[1:] if full else [row[1:] for row in rows]",
        "self.rows = rows[1:] if full else rows",
        (f"{OF_LOOKAHEAD}::test_while_the_window_fills_every_row_takes_a_column",),
    ),
    Mutant(
        "lookahead: the first n-gram begins with a place holder",
        WINDOW,
        "        rows[0][0] = tree.token_N[0]\n",
        "",
        (f"{OF_LOOKAHEAD}::test_a_full_window_moves_on_by_a_row_and_gives_an_ngram_for_every_column",),
    ),
    Mutant(
        "lookahead: n-grams of a window that is not full",
        WINDOW,
        "if full else []",
        "if rows else []",
        (f"{OF_LOOKAHEAD}::test_while_the_window_fills_every_row_takes_a_column",),
    ),
    Mutant(
        "lookahead: a token that is there is chosen twice",
        WINDOW,
        'return tree.add(parent, token, "chosen", drafter=drafter) if child is None else child',
        'return tree.add(parent, token, "chosen", drafter=drafter)',
        (f"{OF_LOOKAHEAD}::test_trajectories_that_meet_share_a_node_and_lose_nothing",),
    ),
    Mutant(
        "lookahead: the window takes the guesses' nodes",
        LOOKAHEAD,
        "return max(nodes - self.config.guesses * (self.config.ngram - 1), nodes // 2)",
        "return nodes",
        (f"{OF_LOOKAHEAD}::test_where_nodes_are_few_the_latest_guess_has_those_of_the_window_left",),
    ),
    Mutant(
        "lookahead: n-grams from the prompt into the answer are left out",
        LOOKAHEAD,
        "tokens[max(0, state.pooled - self.config.ngram + 1) :]",
        "tokens[state.pooled :]",
        (f"{OF_LOOKAHEAD}::test_ngrams_of_the_text_are_guessed_where_asked_for",),
    ),
    Mutant(
        "n-gram pool: the latest is dropped",
        POOL,
        "del after[next(iter(after))]",
        "del after[rest]",
        (f"{OF_LOOKAHEAD}::test_the_pool_keeps_the_latest_of_each_token",),
    ),
    Mutant(
        "n-gram pool: one that comes again stays old",
        POOL,
        "        after.pop(rest, None)\n",
        "",
        (f"{OF_LOOKAHEAD}::test_the_pool_keeps_the_latest_of_each_token",),
    ),
    Mutant(
        "suffix array: sorting ends a round early",
        ARRAY,
        "while sorted_by < depth and",
        "while 2 * sorted_by < depth and",
        (f"{OF_STORE}::test_places_are_sorted_by_the_tokens_that_begin_there",),
    ),
    Mutant(
        "suffix array: a text that ends is like one that goes on with the least",
        ARRAY,
        "key_N[:-sorted_by] += rank_N[sorted_by:] + 1",
        "key_N[:-sorted_by] += rank_N[sorted_by:]",
        (f"{OF_STORE}::test_places_are_sorted_by_the_tokens_that_begin_there",),
    ),
    Mutant(
        "datastore: runs reach from one text into the next",
        "plugins/drafters/spec_sdk_drafters/build_datastore.py",
        "                    tokens.append(END)\n",
        "",
        ("tests/cli/test_build_datastore.py",),
    ),
    Mutant(
        "datastore: a token whose occurrences lie between two steps is missed",
        STORE,
        "while (at := done + step - 1) < run.end:",
        "while (at := done + 2 * step - 1) < run.end:",
        (f"{OF_STORE}::test_frequent_followers_are_found_among_many_occurrences",),
    ),
    Mutant(
        "datastore: a token counts from where it was met",
        STORE,
        "first = bisect_left(self._suffixes, token, done, at, key=key)",
        "first = at",
        (f"{OF_STORE}::test_frequent_followers_are_found_among_many_occurrences",),
    ),
    Mutant(
        "datastore: what follows is looked for one token further",
        STORE,
        "return lambda place: text[min(place + length, last)]",
        "return lambda place: text[min(place + length + 1, last)]",
        (COUNTED,),
    ),
    Mutant(
        "datastore: any tokenizer will do",
        FILE,
        'if metadata.get("tokenizer") != tokenizer:',
        'if metadata.get("tokenizer") is None:',
        (f"{OF_STORE}::test_a_file_of_another_tokenizer_is_refused",),
    ),
    Mutant(
        "datastore: ends of texts are guessed",
        SOURCE,
        "if token < self._vocabulary and token not in found:",
        "if token not in found:",
        (f"{OF_STORE}::test_tokens_that_the_target_has_not_are_not_drafted",),
    ),
    Mutant(
        "datastore: its place is that of the text before",
        SOURCE,
        "        self._end = None\n\n    def end",
        "\n    def end",
        (f"{OF_STORE}::test_conformance", f"{OF_STORE}::test_the_datastore_is_believed_as_often_as_it_was_right"),
    ),
    Mutant(
        "datastore: a path is looked up as if it were the text",
        SOURCE,
        "return tuple(run for before in place if (run := self._datastore.after(before, token)) is not None)",
        "return place",
        (f"{OF_STORE}::test_what_followed_in_the_datastore_is_drafted",),
    ),
    Mutant(
        "datastore: it speaks where it knows nothing",
        SOURCE,
        "        return not place\n",
        "        return False\n",
        (f"{OF_STORE}::test_where_it_knows_nothing_it_does_not_change_what_the_text_says",),
    ),
)
