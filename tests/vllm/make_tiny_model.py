"""Make a model that vLLM can serve out of nothing: `make_tiny_model.py DIR`, no network, a few seconds.

A Llama of 1.3 M random weights: its output is noise, its timing is real. The tokenizer is a byte-level
BPE, trained here on the sources of Python's standard library, with a ChatML template that also renders
tools. Runs with the Python that vLLM is installed in.
"""

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 4096
POSITIONS = 4096
HIDDEN = 128
LAYERS = 2
HEADS = 4  # of 32: vLLM on CPUs wants 32, 64, 96, 128 ...
KV_HEADS = 2
CORPUS_CHARS = 4_000_000
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]  # reasoning and tool parsers look them up
CHAT_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n"
    '# Tools\nCall one as <tool_call>{"name": ..., "arguments": ...}</tool_call>.\n'
    "{%- for t in tools %}\n{{ t | tojson }}{%- endfor %}<|im_end|>\n{%- endif %}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{%- if m.content is string %}{{ m.content }}"
    "{%- elif m.content %}{%- for p in m.content %}{{ p.text }}{%- endfor %}{%- endif %}"
    "{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{%- endfor %}"
    "<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
)


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": POSITIONS,
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    make_model(tokenizer).save_pretrained(directory)


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKS),
        special_tokens=SPECIALS,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens(MARKS)
    return tokenizer


def corpus() -> Iterator[str]:
    chars = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        if chars >= CORPUS_CHARS:
            return
        text = path.read_text(encoding="utf-8", errors="ignore")
        chars += len(text)
        yield text


def make_model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HIDDEN // HEADS,
        max_position_embeddings=POSITIONS,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|pad|>"),
        tie_word_embeddings=False,
        dtype="bfloat16",
        initializer_range=0.2,  # wide enough that the outputs of a random model differ from token to token
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.generation_config.temperature = model.generation_config.top_p = None
    return model


if __name__ == "__main__":
    main()
