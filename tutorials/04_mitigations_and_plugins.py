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
# # 4. Mitigations, and a plugin of your own
#
# The paper proposes a remedy for collapse, a comma after every third digit (Section 4), and sees that a hint and
# interleaved digits help a model to copy (Section 3.1); a review of it asks about local attention windows. Whether
# one of them *helps* is three questions: are more answers right? do $n$ and $n+1$ items stay further apart? do the
# tokens that carry the answer matter more to the last one? A mitigation may do one of these and not the others.
#
# In this tutorial you write one of your own, measure it against two that are built in, and see what it takes to ship
# it.

# %%
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ostools as ost
from mitigations import Mitigation, MitigationError, SlidingWindow
from mitigations.invariants import causal, layers_of, positions, require_rows_sum_to_one, require_unseen
from ostools import hooks, mitigations

model = ost.load_model()
print("built in:", ", ".join(mitigations.names()))

# %% [markdown]
# ## What a mitigation is
#
# A small class with four methods, each of which does nothing until it is overridden:
#
# | method | what it may do |
# |---|---|
# | `sequence(items)` | insert text *between* the task's items |
# | `prompt(text)` | rewrite the whole prompt |
# | `hooks(model)` | return the block in which the forward pass runs |
# | `verify(record)` | raise where its own invariant is broken: called for every layer of every forward pass |
#
# The task keeps its answer key whatever is inserted. A mitigation that would change the right answer is refused:

# %%
plain = ost.tasks.task("copy-last")
print(mitigations.insert(mitigations.mitigation("separator:every=3"), plain.items(8)))


class Zeros(Mitigation):
    """A bad idea for a task in which zeros count."""

    def sequence(self, items):
        return [piece for item in items[:-1] for piece in (item, "1")] + [items[-1]]


counting = ost.tasks.task("count-ones")
try:
    mitigations.insert(Zeros(), counting.items(4), counting.key)
except MitigationError as error:
    print("refused:", error)
else:
    raise AssertionError("expected a refusal")

# %% [markdown]
# ## One of your own
#
# Trained models often rest much of their attention on the first token, an *attention sink*. One reading of Theorem
# 5.1 blames it: what is spent on `<bos>` is not spent on the tokens that carry the answer. Another reading praises
# it: a sink keeps tokens from being mixed too much. So take it away, and see. `NoSink` hides the first token from all
# the others:


# %%
@dataclass(frozen=True)
class NoSink(Mitigation):
    """No token but the first sees the first."""

    def sees(self, query, key):
        """Absolute positions, which broadcast: the same rule serves a prompt and a single step of generation."""
        return (key > 0) | (query == 0)

    def hooks(self, model) -> AbstractContextManager[None]:
        return hooks.mask_scores(model, self.sees)

    def verify(self, record: Mapping[str, Any]) -> None:
        """The weights on the first token are exactly 0, and every row still sums to 1."""
        for layer, pattern, _ in layers_of(record, "NoSink"):
            hidden = causal(pattern) & ~self.sees(*positions(pattern))
            require_unseen("NoSink", layer, pattern, hidden)
            require_rows_sum_to_one("NoSink", layer, pattern)


# %% [markdown]
# `verify` is not decoration. A hook that silently does nothing is the classic bug of this field. It yields "no effect"
# where there was no experiment. Here is a mitigation that forgets its hooks, and what comes of it:


# %%
class Forgetful(NoSink):
    def hooks(self, model):
        return Mitigation.hooks(self, model)  # does nothing


prompt = ost.encode(model, counting.prompt(8))
try:
    with mitigations.running(model, Forgetful()):
        model(prompt.ids[None])
except MitigationError as error:
    print("caught:", error)
else:
    raise AssertionError("expected it to be caught")

# %% [markdown]
# And a mitigation that is fine but changes nothing (a window wider than the prompt) is recorded as *inactive*. It is
# never counted as a success, nor as evidence of no effect:

# %%
for one in (NoSink(), SlidingWindow(16), SlidingWindow(512)):
    print(f"{mitigations.label(one):26s} acts on this prompt: {mitigations.acts(model, one, prompt.ids)}")
assert not mitigations.acts(model, SlidingWindow(512), prompt.ids)

# %% [markdown]
# ## The study
#
# Every question is asked with each mitigation and without, at nine lengths. An effect is measured on these *pairs*. A
# verdict says "helps" or "hurts" only where an interval, widened for the number of verdicts, and a sign test agree; nine
# lengths are the fewest that can decide twelve verdicts.
#
# **Before you look**, bet on each of the three: the comma, the missing sink, and a window of 16 keys.

# %%
questions = ["separator:every=3", NoSink(), "sliding-window:window=16"]
study = ost.study(
    model, "count-ones", mitigations=questions, lengths=range(4, 13), dtypes=["float32"], sensitivity_lengths=0
)
study.plot()

# %%
verdicts = study.verdicts.set_index("mitigation")
for sentence in verdicts["sentence"]:
    print("-", sentence)
assert list(verdicts["answers"]) == ["no measurable effect", "no measurable effect", "hurts"]
assert list(verdicts["collapse"]) == ["no measurable effect", "no measurable effect", "smaller"]
verdicts[["answers", "collapse", "sensitivity"]]

# %% [markdown]
# - **The comma** has no measurable effect here. It could not make more answers right: the model gets every one of these
#   counts right without it, and loses one of nine with it. A study on questions that are all right, or all wrong, can
#   find harm or help only in one direction. Choose a task with room.
# - **The missing sink** has no measurable effect either: this model counts without it.
# - **The window** destroys every answer, and brings $n$ and $n+1$ closer together: the answers say "hurts", the distance
#   "smaller". (The literature's windows alternate with full layers.)
#
# "No measurable effect" is not "no effect". The intervals say how large an effect could have been missed:

# %%
effects = study.effects.query(
    "quantity == 'log_probability' or (quantity == 'collapse_distance' and dtype == 'float64')"
)
effects[["mitigation", "quantity", "scale", "effect", "low", "high", "active"]].round(4)

# %% [markdown]
# ## Any other measurement
#
# `study` is a convenience. A mitigation is a `with` block, and every measurement respects what is active. What does
# the sink do to the sensitivity? **Expect** `<bos>` itself to fall to exactly zero: no path is left from it to the
# last token.

# %%
with mitigations.running(model, NoSink()):
    without_sink = ost.sensitivity(model, prompt, linearisations=["full"])
with_sink = ost.sensitivity(model, prompt, linearisations=["full"])
norm, gone = (result.frame["operator_norm"] for result in (with_sink, without_sink))
carriers = [position for position, token in enumerate(prompt.tokens) if token == "1"]
change = (gone[carriers] / norm[carriers]).mean()
print(f"<bos>: {norm[0]:.3f} with the sink, {gone[0]:.3f} without; the ones: times {change:.2f} on average")
assert gone[0] == 0
assert norm[0] > 0
without_sink.plot()

# %% [markdown]
# ## Ship it
#
# In a notebook an instance is enough. To write `--mitigation no-sink` on the command line, put the class into a
# distribution of its own with an *entry point*. `examples/plugin` is one, complete, with a mitigation and a task.
# Copy it and rename:

# %%
print((Path("..") / "examples" / "plugin" / "pyproject.toml").read_text(encoding="utf-8"))

# %% [markdown]
# ```
# pip install --no-deps -e examples/plugin      # not run here
# ostools list mitigations                           # now lists chunked-attention, and whose it is
# ostools mitigate --task copy-last --mitigation chunked-attention:chunk=32 --lengths 4:40
# ```
#
# The fields of the dataclass become options, read by their types. A name that is taken, a class that cannot be
# imported, and one that is not a mitigation are refused in one line that names the distribution.
#
# ## Exercises
#
# 1. Give `NoSink` a field `layers`, and pass it on to `hooks.mask_scores`. What must `verify` know that it does not
#    know now?
# 2. A study with room: `count-ones-bernoulli`, `lengths=range(4, 40, 4)`, `seeds=(0, 1)`, against `hint` and
#    `repeat-prompt`.
# 3. Compose: `mitigations.compose(NoSink(), SlidingWindow(64, sinks=1))`. What does the second one's sink still do?
# 4. Windows on alternate layers only, `sliding-window:window=16,layers=0+2`: does the answer come back?
