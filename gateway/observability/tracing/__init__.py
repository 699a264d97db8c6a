"""OpenTelemetry spans of sampled calls, and how they reach a collector."""
