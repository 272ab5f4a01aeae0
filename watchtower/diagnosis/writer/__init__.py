"""The only place that makes sentences of a diagnosis; it decides nothing."""
