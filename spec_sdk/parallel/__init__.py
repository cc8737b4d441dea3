"""Several processes that compute together: what travels between them, and how the others follow the leader."""
