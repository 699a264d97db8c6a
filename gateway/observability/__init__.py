"""Logs, metrics and traces of calls, of the schedulers and of the process."""
