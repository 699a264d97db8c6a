"""SLO envelopes: attainment, slack, TTFT forecasts, queue timeouts and shedding."""
