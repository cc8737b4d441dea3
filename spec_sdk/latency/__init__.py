"""How long a token takes, and whether speculating on attention would pay: ALSpec's latency model (Appendix F)."""
