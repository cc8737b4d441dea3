"""Drafts as the files that other programs serve: what ``task=export`` writes."""
