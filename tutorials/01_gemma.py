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
# # 1. Does Gemma lose sight of its prompt?
#
# *Transformers need glasses!* ([arXiv 2406.04267](https://arxiv.org/abs/2406.04267)) predicts that a decoder-only
# language model loses sight of its prompt in two ways. **Representational collapse**: two prompts end in last tokens
# that a low precision cannot tell apart. **Over-squashing**: the last token feels some tokens much less than others.
# Here both are measured on Gemma 3 270M, and then its answers.
#
# `make real` installs the model. Without it write "embedded" for "gemma-3-270m": the calls stay, the numbers change.

# %%
import ostools as ost

model = ost.load_model("gemma-3-270m")
print(ost.models.describe(model).name)

# %% [markdown]
# ## Does bfloat16 hide one more 1?
#
# The prompt is a question and n ones (Figure 5 (a) of the paper). `collapse` measures how far its last representation
# y is from that of n + 1 ones, and how much rounding in bfloat16 moves y. **Expect** the distance to fall below the
# noise: then bfloat16 hides that there is one more.

# %%
pairs = ost.collapse(model, "figure-5a", lengths=range(1, 129), dtypes=["bfloat16"])
pairs.plot()

# %%
ranges = pairs.hidden_ranges().query("site == 'y'")
print(pairs.findings()[1])
assert len(ranges) == 1
assert 64 < ranges["first"].iloc[0] < 128

# %% [markdown]
# It does, from about a hundred ones on. Nothing is extrapolated: the range ends where the lengths do.
#
# ## Which tokens does the last one feel?
#
# `sensitivity` measures how far y moves when the embedding of one token does. **Before you look**: will the name of
# the country weigh more than the words around it?

# %%
prompt = "The capital of France is a city on the river"
norms = ost.sensitivity(model, prompt, linearisations=["full"])
norms.plot()

# %%
top = ost.profile(norms).top(5)
print(top[["position", "token", "value", "share"]].round(3).to_string(index=False))

# %% [markdown]
# It does: about twice as much as any other word between the first token and the last. The norms are those of this last
# token on this prompt. "Is it a U?" is a question about many prompts, in which every
# token stands once at every place: `ost.measure.position_effect` asks it. On 15 natural texts the answer for Gemma is yes
# (see the picture of the README).
#
# ## Does it answer?
#
# Gemma is a base model: it gets three worked examples, and then the answer line begun. The task is to read one value
# out of a list of key-value pairs.

# %%
answers = ost.evaluate(model, "retrieve-at-position", lengths=[2, 4, 8, 16], seeds=range(2))
answers.plot()

# %%
columns = ["length", "prompts", "right", "wilson_low", "wilson_high", "probability"]
print(answers.summary[columns].round(2).to_string(index=False))
by_length = answers.summary.set_index("length")
assert by_length.loc[2, "probability"] > by_length.loc[16, "probability"]

# %% [markdown]
# ## Finding
#
# In bfloat16 Gemma 3 270M cannot tell n ones from n + 1 from about a hundred on. It reads a value out of a short
# list, and the right value becomes less likely as the list grows. These two facts stand side by side: that the one
# causes the other is not shown here.
#
# ## Exercises
#
# 1. Take `lengths=range(1, 520)` (four minutes). At 502 ones the pair is apart again: the prompt is then longer than
#    Gemma's sliding window.
# 2. `norms.save("norms.png")` and `answers.save("answers.parquet")`: what does `ost.load_result` give back?
# 3. Ask the same of "smollm2-135m-instruct". Does bfloat16 hide the pair?
