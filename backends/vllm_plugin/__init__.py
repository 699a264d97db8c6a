"""fairlead-vllm, the plugin that runs inside vLLM: FairBatching as its scheduler, and reports of the time of every
step.

It is installed there as the distribution fairlead-vllm, under the name `fairlead_vllm`, together with the pure code
that it needs (wheel/vendoring.py). Nothing here may need the gateway or a package that vLLM does not bring. Only
scheduler.py, stat_logger.py and endpoint.py use vLLM. docs/plugin.md is the operator's page.
"""
