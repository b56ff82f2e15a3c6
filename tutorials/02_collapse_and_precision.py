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
# # 2. Collapse and precision
#
# **Theorem 4.2** ([arXiv 2406.04267](https://arxiv.org/abs/2406.04267)): let a prompt end in a token, and repeat that
# token once more. As the prompt grows, the last-token representations of the two get arbitrarily close, under two
# assumptions: tokens are bounded, and positional information decays to 0 with distance. (The theorem speaks of the
# last layer's output. We look at $y(v)$ and $y(v^*)$ after the final norm, which the unembedding reads.) Section 4 of the
# paper draws the consequence: **in a low precision, the two can no longer be told apart**, and a model cannot answer
# differently to different questions.
#
# The theorem is about a limit, and gives no rate. Whether a real model at a real length is anywhere near it is a
# measurement, with two traps in it:
#
# 1. a small distance in bfloat16 is not information: below the rounding noise it *is* noise;
# 2. "low precision" is many things (weights, residual stream, key/value cache, arithmetic), and their effects differ.

# %%
import pandas as pd

import ostools as ost
from ostools import mitigations
from ostools.measure.collapse.result import exact_from

model = ost.load_model()
task = ost.tasks.figure_5a()
print(task.example)

# %% [markdown]
# ## The curve
#
# This is Figure 5 (a) of the paper: a question, followed by $n$ ones or by $n + 1$. A causal model reads all prefixes in
# one pass, so 256 lengths cost one pass for each precision.
#
# **Expect** a fall, as in the theorem. Under each curve stands the *noise* of its precision: how far rounding moves
# $y(v)$ from where exact arithmetic has it. The distance itself hardly depends on the precision until it
# reaches that noise.

# %%
curve = ost.collapse(model, task, lengths=range(1, 257), dtypes=["float32", "bfloat16", "float16"])
curve.plot()

# %%
exact = curve.reference_curve("theorem")["distance"]
at_y = curve.frame.query("site == 'y' and per == 'vector' and norm == 'l2' and length == 256").set_index("dtype")
print(
    f"distance at y: {exact[1]:.2f} for 1 against 2, at most {exact.max():.1f} (n = {exact.idxmax()}), {exact[256]:.2f} at 256"
)
print(at_y[["mean", "noise", "ulps"]].round(6))
seen, beyond = exact.loc[33:128].median(), exact.loc[129:].median()
print(f"median distance: {seen:.2f} from 33 to 128 ones, {beyond:.2f} beyond 128, the longest that it was trained on")
assert exact.idxmax() < 16
assert exact[256] < exact.max() / 2
assert beyond > seen
assert (at_y["mean"] > 5 * at_y["noise"]).all()
assert at_y.loc["bfloat16", "noise"] > 1000 * at_y.loc["float32", "noise"]

# %% [markdown]
# The distance *rises* first: up to some seven ones, one more makes a larger difference than it did before (this model
# was trained to count them). Then it falls, in jumps, and where training ends it falls no further. At 256 it stands
# far above bfloat16's noise. So:

# %%
verdicts = curve.verdicts().query("site == 'y'")
assert (verdicts["verdict"] == "apart").all()
verdicts[["dtype", "verdict", "tried", "hidden", "status"]]

# %% [markdown]
# **No precision hides this pair up to 256 ones.** That is a result. It is not "collapse at some length above 256":
# nothing is extrapolated here, because the theorem gives no rate to extrapolate with. A range is reported where the
# float64 distance is below the noise of the difference at eight tried lengths in a row or more.
#
# ## Fewer bits, and which of them
#
# So take fewer bits, one part of the model at a time: `int4-residual` stores the residual stream in 4 bits and
# computes in float32; `int4-kv` does so with keys and values. The prompt is now a sentence with its last word
# repeated. Theorem 4.2 is not about ones.
#
# **Expect** the coarser formats' noise to rise above the distance. There are two noises: of $y(v)$ itself, and of the
# *difference* $y(v) - y(v^*)$. Think before you look: when would they differ?

# %%
formats = ["bfloat16", "bfloat16-residual", "float8_e4m3fn-residual", "int4-residual", "float8_e4m3fn-kv", "int4-kv"]
coarse = ost.collapse(model, "text", lengths=range(1, 257), dtypes=formats)
coarse.plot()

# %%
verdicts = coarse.verdicts().query("site == 'y'").set_index("dtype")
exact = coarse.reference_curve("theorem")["distance"]
at_y = coarse.frame.query("site == 'y' and per == 'vector' and norm == 'l2'")
rows = {}
for name in formats:
    floors = at_y[at_y["dtype"] == name].set_index("length")
    hidden = {noise: exact < floors[noise] for noise in ("noise", "pair_noise")}
    rows[name] = {f"below the {noise}": int(below.sum()) for noise, below in hidden.items()}
    rows[name]["at every length from"] = int(exact.index[~hidden["noise"]].max()) + 1
of_256 = pd.DataFrame(rows).T
assert 0 < of_256.loc["bfloat16", "below the noise"] < 32
assert of_256.loc["bfloat16-residual", "below the noise"] == 0
assert of_256.loc["int4-residual", "below the noise"] > 200
assert 128 < of_256.loc["int4-residual", "at every length from"] <= 256
assert of_256.loc["int4-kv", "below the pair_noise"] < 0.75 * of_256.loc["int4-kv", "below the noise"]
assert verdicts.loc["int4-residual", "verdict"] == "hidden to the end"
of_256.join(verdicts[["verdict", "first", "last", "ranges"]])

# %% [markdown]
# - **A residual stream in 4 bits hides the pair** at nearly all of the 256 lengths, by both noises, and at every one
#   from about two hundred copies on. Here Section 4 of the paper is right: the verdict is a range that is open at the
#   end of the lengths tried.
# - **A key/value cache in 4 bits hides less than its noise says.** It moves $y(v)$ and $y(v^*)$ *alike*, because both
#   read the same rounded cache. The noise of their difference is smaller, so at many lengths at which each is off by
#   more than the distance the two can still be told apart. So `verdicts` and `hidden_ranges` compare the distance with
#   the noise of the difference.
# - `bfloat16`: the distance falls below its noise at a few lengths and comes out of it again: that is chance, and no
#   range. In the residual stream alone bfloat16 hides nothing here.
#
# ## A case in which collapse is certain
#
# The paper names RoPE as an encoding that decays with distance. Where we measured it, on random decoders, it did not, so
# for this model Theorem 4.2 promises nothing. There is a setting that promises a lot. Let every layer see a window of
# $w$ keys only. On one token repeated, a query whose window lies within the copies sees the same values whatever the
# number of copies; after $L$ layers the last token depends on the last $L(w-1)+1$ tokens alone. From so many copies
# on, the two prompts must give **exactly** the same $y$.

# %%
windows = {}
for width, longest in {2: 12, 3: 16, 4: 48}.items():
    window = mitigations.SlidingWindow(width)
    windows[width] = ost.collapse(model, task, lengths=range(1, longest + 1), dtypes=["bfloat16"], mitigation=window)
    foretold, found = model.cfg.n_layers * (width - 1) + 1, exact_from(windows[width].reference_curve("theorem"))
    print(f"window {width}: foretold from {foretold} copies on, found from {found} on")
    assert found == foretold

# %% [markdown]
# The count is right to the copy. What does bfloat16 make of a pair that exact arithmetic cannot tell apart? **Before
# you look**: will its distance be zero?

# %%
windows[4].plot()

# %%
by_length = windows[4].frame.query("site == 'y' and per == 'vector' and norm == 'l2'").set_index("length")
beyond = by_length.loc[16:, "mean"]
noise = by_length["noise"].median()
print(f"bfloat16's own distance from 16 copies on: {beyond.min():.3f} to {beyond.max():.3f}, noise {noise:.3f}")
print("in bfloat16:", windows[4].verdicts().query("site == 'y'")["status"].item())
assert (beyond == 0).any()
assert beyond.max() > 0.03
assert beyond.max() < 3 * noise

# %% [markdown]
# At some lengths it is exactly zero, and at others it is as large as the noise. The rotary angles differ at every
# position, and whether they round alike is chance. A pair that exact arithmetic cannot tell apart *seems* to be told
# apart by bfloat16, now and then. That is the first trap. A curve that levels off in low precision says where the
# noise is, and nothing about the prompts. The float64 distance, read against that noise, says where the pair was
# lost.
#
# ## A model that was trained with windows
#
# Above, the window was forced onto a model that never saw one. The package carries a small model of Gemma 3's shape,
# `embedded-windowed`: five of its six layers see 16 tokens, the last one sees all. The same argument foretells what
# its windowed layers do. After the fifth, the last token depends on the last $5 \cdot 15 + 1 = 76$ tokens.
#
# **Before you look**: from how many copies on is $v^{(5)}$ the same for both prompts? And $y$, after one layer more
# that sees everything?

# %%
windowed = ost.load_model("embedded-windowed")
trained = ost.collapse(windowed, task, lengths=range(1, 129), dtypes=["bfloat16"], layers=[5])
of_pair = trained.frame.query("per == 'vector' and norm == 'l2' and length in [16, 60, 75, 76, 100, 128]")
of_pair = of_pair[(of_pair["site"] == "y") | ((of_pair["site"] == "residual") & (of_pair["layer"] == 5))]
of_pair.pivot(index="length", columns="site", values="float64_distance").map("{:.1e}".format)

# %%
v5 = trained.frame.query("site == 'residual' and layer == 5 and per == 'vector' and norm == 'l2'").set_index("length")
assert (v5["float64_distance"].loc[76:] < 1e-12).all()
assert v5["float64_distance"].loc[75] > 1e-6

# %% [markdown]
# The count is right to the copy again: from 76 copies on, $v^{(5)}$ of the two prompts is the same vector up to
# float64's rounding. Real training did not avoid that. It cannot: the window leaves no way around. What keeps $y$
# apart is the one layer that sees every token. So a count of more than 75 copies reaches the answer through that
# layer alone. What the three models of the package do at longer prompts: see what the embedded models show
# (`docs/findings/embedded-models.md`).
#
# ## Does the model notice?
#
# **Corollary 6.2**: counting becomes impossible in certain situations, because of collapse. What follows strictly: once
# $y(n)$ and $y(n+1)$ are the same, the *first* tokens of the two answers are the same. So of two right answers that begin
# differently at most one is given. Later tokens may differ: they see other caches. `counting` predicts
# from the collapse curve the count from which first tokens are not *expected* to differ (a distance below the noise is
# not a distance of zero), and puts it beside the count from which the model errs.
#
# **Expect** no impossible count, from what we saw above; and right answers, as far as the model was trained.

# %%
counts = ost.counting(model, "count-ones", lengths=range(1, 25), dtypes=["float32", "bfloat16"])
assert counts.frame["correct"].all()
counts.plot()

# %%
counts.summary[["dtype", "impossible_from", "impossible_status", "first_error", "errors", "counts", "verdict"]]

# %% [markdown]
# Every answer to 24 is right, and for no precision is an impossible count predicted. Were there errors, this table would
# say whether collapse may be blamed: errors *below* the impossible count are not due to it.
#
# ## What collapse in bfloat16 proves, and what it does not
#
# - A range says: over these lengths the difference between these two prompts is smaller at the last token than what
#   rounding does to it. It is a fact about this pair, this model and this format.
# - It does not say that answers are wrong: the top token may have been settled long before (see `top-token` in
#   `verdicts()`), and it may be the right one.
# - The absence of collapse does not say that the model can count.
#
# ## Exercises
#
# 1. `ost.collapse(model, "words", lengths=range(1, 129)).reference_curve("theorem")` is the distance by length, and
#    `ost.theory.fits.fit_decay` fits a law to it. Is it a power or an exponential? What changes with `bos=False`?
# 2. Give the window one sink: `mitigations.SlidingWindow(4, sinks=1)`. Is collapse still exact? Why not?
# 3. Section 4 of the paper puts a comma after every third digit: `ost.collapse(model, ost.tasks.figure_5d(), ...)`.
#    Compare the pairs `theorem` and `one-more-digit`: which of them does the theorem speak of?
# 4. Which of `float8_e4m3fn` and `float8_e5m2`, in the residual stream, hides more? Which has more bits of mantissa?
