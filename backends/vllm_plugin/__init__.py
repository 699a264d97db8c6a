"""What runs inside vLLM: FairBatching as its scheduler, and reports of what every step took.

Installed there as the distribution fairlead-vllm, under the name `fairlead_vllm`, with the pure code that it needs
inside (wheel/vendoring.py); nothing here may need the gateway or any package that vLLM does not bring. Only
scheduler.py, stat_logger.py and endpoint.py know vLLM. docs/plugin.md is its operator's page.
"""
