"""Makes data/reference.json: what sentence-transformers computes for data/sentences.txt.

    python3 -m venv /tmp/reference && /tmp/reference/bin/pip install sentence-transformers
    /tmp/reference/bin/python examples/inference/reference.py MODEL_DIR

MODEL_DIR is what `inference fetch MODEL_DIR` made. Besides the lines of the file there are two sentences that a
file of lines holds badly: an empty one, and one that is longer than the model takes (all lines, twice).
"""

import hashlib
import json
import pathlib
import sys

import sentence_transformers
import torch
import transformers

HERE = pathlib.Path(__file__).parent
# Half of a unit of the last digit moves a cosine distance by 1e-11.
DIGITS = 6


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    directory = pathlib.Path(sys.argv[1])
    lines = (HERE / "data/sentences.txt").read_text("utf-8").splitlines()
    sentences = [*lines, "", " ".join(lines * 2)]
    model = sentence_transformers.SentenceTransformer(str(directory), device="cpu")
    # One at a time: padding cannot play a part.
    rows = [model.encode(sentence, normalize_embeddings=True).tolist() for sentence in sentences]
    weights = hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()
    about = {
        "command": "python examples/inference/reference.py MODEL_DIR",
        "sentence-transformers": sentence_transformers.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "model.safetensors": f"sha256:{weights}",
    }
    pairs = [
        json.dumps(sentence, ensure_ascii=False) + ": [" + ",".join(f"{x:.{DIGITS}f}" for x in row) + "]"
        for sentence, row in zip(sentences, rows)
    ]
    text = '{"about": ' + json.dumps(about) + ',\n"embeddings": {\n' + ",\n".join(pairs) + "\n}}\n"
    json.loads(text)
    (HERE / "data/reference.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
