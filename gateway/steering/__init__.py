"""Steering: single requests, as an operator sees and cancels them, and the effects of a planned change."""
