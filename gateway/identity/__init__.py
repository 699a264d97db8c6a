"""Identity of callers: API keys, tokens of identity providers, trusted proxies, and the tenants they stand for."""
