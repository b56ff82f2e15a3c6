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
# # 1. Quick tour
#
# *Transformers need glasses!* ([arXiv 2406.04267](https://arxiv.org/abs/2406.04267)) predicts two ways in which a
# decoder-only language model loses sight of its prompt:
#
# - **over-squashing** (Theorem 5.1): everything that the model says next is read off the *last* token, and what the
#   other tokens say has to be squeezed through it;
# - **representational collapse** (Theorem 4.2): two different prompts end in last tokens that are ever harder to tell
#   apart, the sooner the fewer bits a number has.
#
# Both are statements about numbers that can be measured. In ten minutes you will have measured each of them once, on
# a model that comes with the package, so that nothing is downloaded. The later tutorials take one question each.

# %%
import tempfile
from pathlib import Path

import pandas as pd

import ostools as ost

model = ost.load_model()
card = ost.models.describe(model)
print(f"{card.architecture}: {card.n_layers} layers, d_model {card.d_model}, {card.n_parameters:,} parameters")
print("trained up to this many items:", card.trained_lengths)

# %% [markdown]
# It is small, but it is a trained model of Gemma's architecture: its attention patterns were learned, on the very
# tasks that the paper asks about. Here is one of them, in the paper's words. Tokens are numbered from 0; the last one
# is called *n* below.

# %%
task = ost.tasks.task("copy-last")
prompt = ost.encode(model, task.prompt(8))
print(len(prompt.ids), "tokens:", " | ".join(prompt.tokens))

# %% [markdown]
# ## What does the last token still feel of each other token?
#
# Nudge the embedding $v_i^{(0)}$ of token $i$ a little: how far does the last token's final representation $y_n$
# move? For all nudges at once the answer is a Jacobian matrix, $J_i = \partial y_n / \partial v_i^{(0)}$, and
# `sensitivity` gives its norm for every $i$. It does so for two networks: the real one (`full`), and one with
# attention patterns and norm scales held constant (`frozen`), which is the one that Theorem 5.1 speaks of.
#
# **Before you look**: the sequence holds a single 0, and the 0 is the answer. Will it stand out?

# %%
profile = ost.sensitivity(model, prompt)
profile.plot()

# %%
zero = prompt.tokens.index("0")


def rank_of_zero(measured):
    ranks = ost.profile(measured).frame.query("linearisation == 'full'").set_index("position")["rank"]
    return int(ranks[zero]), len(ranks)


top = ost.profile(profile).top(5)
print("The 0 is token {}; its rank among the tokens: {} of {}.".format(zero, *rank_of_zero(profile)))
assert rank_of_zero(profile)[0] > 10
assert top["position"][0] == len(prompt.ids) - 1
top[["position", "token", "value", "share", "over_frozen"]].round(3)

# %% [markdown]
# It does not: fifteen tokens matter more, the last one itself first, which every skip connection carries up. But
# think of what $y_n$ is asked for *here*. The model goes on with a line end and "The answer to your question is:",
# whatever the digits were. So let us write that line for it, and ask again at the place where the digit itself comes
# next.

# %%
begun = ost.encode(model, task.prompt(8) + task.lead + "The answer to your question is: ")
at_the_answer = ost.sensitivity(model, begun)
print("The 0 has rank {} of {}.".format(*rank_of_zero(at_the_answer)))
assert rank_of_zero(at_the_answer)[0] == 1
at_the_answer.plot()

# %% [markdown]
# Now the 0 is the token that matters most. **Where one reads decides what one sees**: a sensitivity is that of one
# last token, on one prompt, and the prompt has to end where the information is needed. (Both lines are measured: the
# distance between `full` and `frozen` says that holding patterns and scales constant makes another network, with
# another profile.)
#
# ## Does the theorem's bound hold, and does it say anything?
#
# Theorem 5.1 bounds $\|J_i\|$ by a sum over all paths of attention from token $i$ to token $n$. It has a
# free constant; `local` is a version of it without one: every constant is bounded from above (*certified*).
# `proof` is the form that the paper's derivation supports, with its constants filled in. It is no bound on a real
# model. So a few random directions of the derivative are measured beside it, and the result says whether it may be
# believed on this prompt.
#
# **Expect** the certified line above the measured one everywhere. How far above?

# %%
paths = ost.bounds(model, begun, variants=["local", "proof"])
comparison = ost.compare(at_the_answer, paths)
comparison.plot()

# %%
summary = comparison.summary.set_index("variant")
assert bool(summary.loc["local", "holds"])
assert summary.loc["local", "median_log10_looseness"] > 3
assert summary.loc["local", "spearman"] < 0.75
assert not summary.loc["proof", "believed"]
summary[["kind", "norm", "holds", "median_log10_looseness", "spearman", "words"]]

# %% [markdown]
# Three questions, three answers. The certified bound **holds**. It is **loose**: more than a factor of a thousand in
# the median (`median_log10_looseness` is the power of ten). And its **shape** ranks the tokens roughly (`spearman`,
# the rank correlation). The paper's own form is not believed here: its size is off by a factor of more than ten
# thousand. [Tutorial 3](03_sensitivity_and_bounds.ipynb) takes the bound apart.
#
# ## Do two prompts become one?
#
# Theorem 4.2 compares a prompt of $n$ ones with a prompt of $n + 1$. `collapse` measures how far apart their last
# tokens are, for every $n$, and beside it how much *rounding* moves a representation in each number format. Once the
# distance is below that noise, the format can no longer tell the prompts apart.
#
# **Expect** falling curves and level floors: bfloat16, with 8 bits of mantissa, has its floor far above float32's.

# %%
curve = ost.collapse(model, ost.tasks.figure_5a(), lengths=range(1, 129), dtypes=["float32", "bfloat16"])
curve.plot()

# %%
distance = curve.reference_curve("theorem")["distance"]
at_y = curve.verdicts().query("site == 'y'")
print(f"peak {distance.max():.1f} at {distance.idxmax()} ones, {distance[128]:.1f} at 128")
assert distance[128] < distance.max() / 2
assert (at_y["verdict"] == "apart").all()
at_y[["dtype", "verdict", "status"]]

# %% [markdown]
# The distance falls, but it has not reached bfloat16's floor at 128 ones, so no range is reported; nothing
# is extrapolated. This model was trained to count, and keeps its counts apart. [Tutorial
# 2](02_collapse_and_precision.ipynb) finds prompts and formats where it does not.
#
# ## Does any of it show in what the model answers?
#
# `evaluate` asks, and reads the answer. Here: how many ones are in a sequence of random digits? Four sequences a
# length. **Expect** the share of right answers to fall with length, and its interval to be wide: four questions are
# few.

# %%
answers = ost.evaluate(model, "count-ones-bernoulli", lengths=range(4, 41, 4), seeds=range(4))
answers.plot()

# %%
share = answers.summary.set_index("length")["accuracy"]
assert share[4] == 1
assert share.loc[24:].mean() < 0.5 < share.loc[:12].mean()
answers.summary[
    ["length", "prompts", "right", "wilson_low", "wilson_high", "mean_absolute_error", "probability"]
].round(3)

# %% [markdown]
# Right at 4 and 8 digits, mostly wrong beyond 20; yet never by much, and the probability of the right answer falls
# earlier and more steadily than the share of right ones. Whether over-squashing is the *cause* is a question that
# this chart cannot answer: tutorials [4](04_mitigations_and_plugins.ipynb) and [5](05_ablation_scripts.ipynb) change
# something and measure again.
#
# ## Keep what you measured
#
# Every result is a tidy table (`.frame`) with its chart (`.plot()`) and the provenance of its numbers, and `.save()`
# writes either: `.parquet .csv .json` or `.html .png .svg .pdf`. A Parquet file carries its provenance along.

# %%
with tempfile.TemporaryDirectory() as folder:
    table = profile.save(Path(folder) / "profile.parquet")
    picture = profile.save(Path(folder) / "profile.svg")
    again = pd.read_parquet(table)
    print(f"{table.name}: {len(again)} rows, {picture.name}: {picture.stat().st_size:,} bytes")
    print({name: again.attrs["ostools"]["model"][name] for name in ("name", "dtype", "n_layers")})
    assert again.equals(profile.frame)

# %% [markdown]
# All of this and more in one HTML file that needs no network, for any model and prompt:
#
# ```
# ostools report --prompt "Can you copy the following number?1111" --out mine.html
# ```
#
# ## Exercises
#
# 1. Put the 0 first (`ost.tasks.task("copy-first").prompt(8)`). Which tokens gain, and which lose?
# 2. `ost.sensitivity(model, begun, layers="all", linearisations=["full"]).plot()` is a heat map of layers and tokens.
#    From which layer on does the 0 itself no longer matter, and where has what it said gone?
# 3. Theorem 4.2 is not about ones. Draw `ost.collapse(model, "text", lengths=range(1, 129)).plot()` and compare the
#    rates.
# 4. Lengthen the sequence to 64 digits, and look for the 0 at its new place. Is it still the first at the answer?
