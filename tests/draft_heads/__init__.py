"""Draft heads: published layouts, formulas, the drafter that uses them."""
