# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 6. Your model: directories, the hub, GPUs, memory
#
# Everything in the other tutorials runs on *your* model: Gemma 1, 2, 3, Llama or GPT-2, from a directory in Hugging
# Face's format or by its hub id. This one is about what changes when the model is not the small one that the package
# carries: what is refused, what it costs, and how to know that before you pay.
#
# A gated download and a GPU are not things that a tutorial can count on. What needs one stands here as text and says
# so; all the rest is run, on checkpoints of the real architectures with random weights, which we make ourselves.

# %%
import os
import shutil
import tempfile
from pathlib import Path

import pandas as pd
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import GemmaConfig, GemmaForCausalLM, LlamaConfig, LlamaForCausalLM

import ostools as ost
from ostools.measure.bounds.bounds import bounds_bytes
from ostools.measure.jacobian.memory import sensitivity_bytes
from ostools.measure.jacobian.norms import choose_method
from ostools.models.shape import Shape

transformers.utils.logging.disable_progress_bar()
here, workplace = os.getcwd(), tempfile.TemporaryDirectory()
os.chdir(workplace.name)

# %% [markdown]
# ## A directory
#
# A checkpoint is a directory with `config.json`, `*.safetensors` and a tokenizer. Here are two: one of Gemma's
# architecture, and one with the layout of the children's-story Llama that many use for trials (5 layers, d_model 64,
# 8 query heads that share 4 key/value heads). Yours is made by `save_pretrained`, or downloaded.

# %%
tokenizer = ost.load_model().tokenizer
special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 512, **special}
torch.manual_seed(0)
gemma = GemmaConfig(
    hidden_size=96,
    intermediate_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=32,
    **sizes,
)
llama = LlamaConfig(
    hidden_size=64, intermediate_size=172, num_hidden_layers=5, num_attention_heads=8, num_key_value_heads=4, **sizes
)
for folder, checkpoint in (("my-gemma", GemmaForCausalLM(gemma)), ("my-llama", LlamaForCausalLM(llama))):
    checkpoint.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
print(sorted(file.name for file in Path("my-gemma").iterdir()))

# %%
models = {folder: ost.load_model(f"./{folder}") for folder in ("my-gemma", "my-llama")}
described = pd.DataFrame([vars(ost.models.describe(model)) for model in models.values()])
assert list(described["architecture"]) == ["GemmaForCausalLM", "LlamaForCausalLM"]
described[
    ["name", "architecture", "n_layers", "d_model", "n_heads", "n_key_value_heads", "n_parameters", "dtype", "device"]
]

# %% [markdown]
# Every result carries this description, with a hash of the weights and of the configuration. Loading runs the
# checkpoint's own code beside the hooked model, and compares.
#
# And then it is the same as everywhere. **Expect** no insight (the weights are random), but a bound that holds:

# %%
prompt = "The capital of France is"
profile = ost.sensitivity(models["my-llama"], prompt)
comparison = ost.compare(profile, ost.bounds(models["my-llama"], prompt, variants=["local", "windowed(1)"]))
assert comparison.summary.query("kind == 'certified'")["holds"].all()
comparison.plot()

# %%
comparison.summary[["variant", "kind", "holds", "median_log10_looseness", "spearman"]].round(2)

# %% [markdown]
# It holds. But do not test a bound, or any other statement about trained networks, on random models: their steps meet
# randomly rotated directions, and those of a trained model do not. A prediction of ours was perfect on random weights,
# good on small trained models, and 10^7 too large on Gemma 3 270M (`docs/findings/index.md`).
#
# ## What is refused
#
# Most of the ways in which loading goes wrong are silent elsewhere. A weight that is missing from the file is drawn
# at random, and all the numbers look fine.

# %%
weights = load_file("my-gemma/model.safetensors")
weights.pop("model.layers.1.mlp.up_proj.weight")
shutil.copytree("my-gemma", "incomplete")
save_file(weights, "incomplete/model.safetensors", metadata={"format": "pt"})
shutil.copytree("my-gemma", "wordless", ignore=shutil.ignore_patterns("tokenizer.json"))

for folder in ("incomplete", "wordless", "my-gema"):
    try:
        ost.load_model(f"./{folder}")
    except ost.InputError as error:
        print(f"{folder}: {error}\n")
    else:
        raise AssertionError("expected a refusal")

# %% [markdown]
# ## The hub, and a GPU
#
# Not run here: the first needs an accepted licence and a token, the second a GPU.
#
# ```
# export HF_TOKEN=...
# ostools report --model google/gemma-7b --load-dtype bfloat16 --device cuda --out gemma.html
# ```
#
# ```python
# model = ost.load_model("google/gemma-7b", dtype="float32", device="cuda", revision="main")
# ```
#
# `--device auto`, the default, takes CUDA where there is one. Apple's `mps` works for sensitivity in float32; what
# needs a float64 reference (collapse) says so and asks for the CPU.
#
# ## Which dtype?
#
# A Jacobian in bfloat16 would be wrong by several percent, so a 16-bit model is computed with in float32. The weights keep
# their 16-bit values: each is cast where it is read. **Expect** the same profile to three
# digits or so: rounding the *weights* is a small change of the model.

# %%
half = ost.load_model("./my-gemma", dtype="bfloat16")
in_half, in_full = (ost.sensitivity(one, prompt).frame["operator_norm"] for one in (half, models["my-gemma"]))
change = (in_half / in_full - 1).abs()
print(f"profile of the model with 16-bit weights: off by {change.max():.2%} at most")
assert change.max() < 0.05

# %% [markdown]
# It costs time and no second copy: a weight is cast, used and dropped. (To measure what *running* in bfloat16 does, use
# `collapse`, which is about nothing else.)
#
# ## What will it cost?
#
# An exact profile takes `d_model` backward passes, whatever the length of the prompt. A sketch takes 8, whatever
# `d_model`, and gives each Frobenius norm with an interval. `method="auto"` is exact up to `d_model` 256, and a sketch
# of wider models:

# %%
for d_model in (128, 1024, 3072):
    choice = choose_method(d_model, exact_fits=True)
    print(f"d_model {d_model:5d}: {choice.method:8s} ({choice.reason})")

# %% [markdown]
# And memory is forecast before anything runs; `max_memory` makes it a limit. Too large a run takes smaller blocks
# first, and is refused if even that does not fit. `runs` in the provenance has the plan. (On the command line every
# command announces its memory before it loads the model; `--max-memory` is the limit.)

# %%
measured = ost.sensitivity(models["my-gemma"], prompt, linearisations=["full"])
print(measured.provenance.parameters["runs"]["full"]["plan"])
try:
    ost.sensitivity(models["my-gemma"], prompt, max_memory=10_000_000)
except ost.InputError as error:
    print(error)
else:
    raise AssertionError("expected a refusal")

# %% [markdown]
# ## Gemma 7B, without Gemma 7B
#
# The forecast needs shapes, not numbers, and `GemmaConfig()` is the configuration of the 7 B model. So here is what
# `google/gemma-7b` will need, from a machine that could never hold it. The weights stay as they are stored, in
# bfloat16: what is computed in float32 or float64 casts them where it reads them, a part at a time.
#
# **Before you look**: 8.5 billion parameters take 17 GB in bfloat16. How much *more* does the profile of a 64-token
# prompt take?

# %%
gemma_7b = Shape.of_config(GemmaConfig(), torch.bfloat16, "cpu")
print(f"{gemma_7b.parameters / 1e9:.2f} billion parameters: {2 * gemma_7b.parameters / 2**30:.0f} GiB in bfloat16")

rows = []
for tokens in (64, 256, 1024, 4096):
    sizes = {
        "exact profile": sensitivity_bytes(gemma_7b, tokens, ["full"], method="exact"),
        "estimate": sensitivity_bytes(gemma_7b, tokens, ["full"], method="estimate"),
        "local bound": bounds_bytes(gemma_7b, tokens, ["local"]),
        "sketch": sensitivity_bytes(gemma_7b, tokens, ["full"], method="sketch"),
    }
    rows.append({"tokens": tokens, **{f"{name}, GiB": size / 2**30 for name, size in sizes.items()}})
forecast = pd.DataFrame(rows)
assert 8.5 < gemma_7b.parameters / 1e9 < 8.6
assert forecast["exact profile, GiB"][0] < 8
assert (forecast["estimate, GiB"] < forecast["exact profile, GiB"]).all()
forecast.round(1)

# %% [markdown]
# Beside the model, the profile of a short prompt is small change; at 1,024 tokens the exact one needs more than the
# model itself, and the estimate a fraction of it. A limit (`max_memory=`) moves rows into a file and makes the peak
# smaller. `docs/scale.md` answers "what can I run?" from these forecasts, with measurements beside them.
#
# ## A report of a large model
#
# `ostools report` measures everything, and everything is a lot. Choose:
#
# ```
# ostools report --model google/gemma-7b --load-dtype bfloat16 --device cuda --section sensitivity --section attention
# ```
#
# | you want | cheapest way | cost |
# |---|---|---|
# | which tokens matter | `sensitivity(method="sketch")` | 8 backward passes |
# | the same, each norm within 10% | `sensitivity(method="estimate")` | up to some hundred backward passes |
# | how far apart two prompts are | `collapse(lengths=...)` | a forward pass a precision, and one in float64 |
# | what it answers | `evaluate(...)` | generation |
#
# ## Exercises
#
# 1. Save `my-gemma` with `num_key_value_heads=1`, as Gemma 2B has it. Does anything in your code have to change?
# 2. Edit `config.json` of `my-llama` so that `vocab_size` is 2000. What is said, and what would have happened without
#    it?
# 3. From which prompt length on is the exact profile of the 7 B model refused in 40 GiB
#    (`ostools.measure.jacobian.memory.plan(..., max_memory=40 * 2**30)`)?
# 4. Forecast a 2 B model: `GemmaConfig(hidden_size=2048, num_hidden_layers=18, num_attention_heads=8,
#    num_key_value_heads=1, intermediate_size=16384)`.

# %%
os.chdir(here)
workplace.cleanup()
