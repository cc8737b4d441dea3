"""An HTTP server of an engine with the interface of OpenAI: what ``task=serve`` runs (extra ``serve``)."""
