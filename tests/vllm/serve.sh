#!/usr/bin/env bash
# serve.sh DIR PORT [vllm serve options...]: vLLM in the foreground on 127.0.0.1:PORT, with what install.sh put
# in DIR; the model is called "tiny". An option that is given again here wins over the one below.
#
# The in-process executor leaves a machine of two cores usable: the default one busy-waits, starves the API
# process, and delivers tokens in lumps. Both switches are needed. With the model's 16 bits, of two tokens that are nearly
# as likely the other one comes where a prompt is computed at once instead of token by token, or beside others: of 72
# answers of 400 tokens, 43 differed.
set -euo pipefail
dir=$1 port=$2
shift 2
export VLLM_ENABLE_V1_MULTIPROCESSING=0 OMP_NUM_THREADS=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
unset VLLM_CPU_KVCACHE_SPACE # in whole GiB, and it would override --kv-cache-memory-bytes
exec "$dir/venv/bin/vllm" serve "$dir/model" --served-model-name tiny --host 127.0.0.1 --port "$port" \
  --max-model-len 4096 --dtype float32 --enforce-eager --distributed-executor-backend uni --kv-cache-memory-bytes 134217728 "$@"
