"""Write a model folder without weights, for mock engines: `python -P make_tiny.py MODEL_FOLDER`.

Settings, a small tokenizer and a chat template, all made here. Run with the lab's own Python, where `tokenizers` is.
"""

# mypy: disable-error-code="import-not-found"
# (tokenizers is in the lab's environment only)

import json
import sys
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

START, END = "<|start|>", "<|end|>"
VOCABULARY = 2000
CONTEXT = 4096
TEMPLATE = (
    "{% for message in messages %}"
    f"{START}{{{{ message['role'] }}}}\n{{{{ message['content'] }}}}{END}\n"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{START}assistant\n{{% endif %}}"
)


def make(folder: Path) -> None:
    """Write config.json, generation_config.json, tokenizer.json and tokenizer_config.json into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[START, END], initial_alphabet=alphabet
    )
    # any English text would do; this one comes with every Python
    tokenizer.train_from_iterator(topics.values(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    start, end = tokenizer.token_to_id(START), tokenizer.token_to_id(END)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_key_value_heads": 2}
    tokens = {"bos_token_id": start, "eos_token_id": end}
    size = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": CONTEXT}
    _write(folder / "config.json", {**llama, **shape, **size, **tokens, "torch_dtype": "float32"})
    _write(folder / "generation_config.json", tokens)
    words = {"bos_token": START, "eos_token": END, "chat_template": TEMPLATE, "model_max_length": CONTEXT}
    _write(folder / "tokenizer_config.json", {**words, "tokenizer_class": "PreTrainedTokenizerFast"})


def _write(file: Path, content: dict[str, object]) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
