"""Notices: messages to a webhook about budgets at a threshold, sent once for all gateways that share the state."""
