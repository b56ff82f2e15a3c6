"""Every quantity on real pretrained models, by an independent route: transformers alone, loops, and
plain autograd; the tokenizers' ids are llama.cpp's. Qwen2.5-Coder-1.5B-Instruct where
`make real-large` has installed it.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.measure.answers.answers import answers
from ostools.models import describe, encode, load_model
from ostools.models.describe import named_weights
from ostools.models.files.gguf_tokenizer import read_gguf_tokenizer, read_header
from ostools.models.files.sources import PACKAGED_MODELS, is_installed
from ostools.models.precision.scores import attention_of, reference_attention
from tests.real.conftest import Real, joined

pytestmark = pytest.mark.slow
WITHIN = 1e-4
"""The plain model is in float64, but transformers' norms go through float32 there."""
TEXT = "The capital of France is Paris. The capital of Italy is"


def test_logits_are_those_of_transformers(real: Real) -> None:
    ids = ost.encode(real.model, TEXT).ids[None]
    assert torch.equal(real.model(ids), real.plain(torch.float32)(ids, use_cache=False).logits)


def test_attention_is_that_of_transformers(real: Real) -> None:
    ids = ost.encode(real.model, TEXT).ids[None]
    theirs = real.plain(torch.float32)(ids, use_cache=False, output_attentions=True).attentions
    assert torch.equal(
        ost.attention(real.model, TEXT).last.float(),
        torch.stack([part[0, :, -1] for part in theirs]),
    )


def test_greedy_answers_are_those_of_generate(real: Real) -> None:
    ids = ost.encode(real.model, TEXT).ids[None]
    (found,) = answers(real.model, [TEXT], max_new_tokens=6)
    options: dict[str, Any] = {
        "max_new_tokens": 6,
        "do_sample": False,
        "attention_mask": torch.ones_like(ids),
    }
    written = real.plain(torch.float32).generate(ids, **options)[0, ids.shape[1] :].tolist()
    assert list(found.ids) == written[: len(found.ids)]
    assert "Rome" in real.model.tokenizer.decode(written)


def test_the_bridges_own_methods_are_transformers_on_the_tokenizers_own_ids(real: Real) -> None:
    model, plain, tokenizer = real.model, real.plain(torch.float32), real.model.tokenizer
    options: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False}
    for text in (TEXT, "na\u00efve caf\u00e9 \u65e5\u672c\u8a9e\n", " 1 1"):
        ids = tokenizer(text, return_tensors="pt").input_ids
        assert (
            model.to_tokens(text).tolist() == ids.tolist() == [ost.encode(model, text).ids.tolist()]
        )
        assert model.to_str_tokens(text) == [tokenizer.decode([index]) for index in ids[0].tolist()]
        written = plain.generate(ids, attention_mask=torch.ones_like(ids), **options)[0]
        assert model.generate(text, verbose=False, **options) == tokenizer.decode(
            written, skip_special_tokens=True
        )
        for bos in (True, False):
            ours = ost.encode(model, text, bos=bos).ids.tolist()
            assert model.to_tokens(text, prepend_bos=bos).tolist() == [ours]


@pytest.mark.parametrize("eager", [False, True])
def test_y_in_bfloat16_is_that_of_transformers(real: Real, eager: bool) -> None:
    """To the bit: with its eager attention, and with that in float32 between queries and what
    attention gives.
    """
    ids, plain = ost.encode(real.model, TEXT).ids, real.plain(torch.bfloat16)
    with attention_of(plain, reference_attention(plain, eager)):
        expected = _last(plain, ids)
    with torch.no_grad():
        _, cache = ost.models.view_in(real.model, torch.bfloat16, eager=eager).run_with_cache(
            ids[None]
        )
    assert torch.equal(cache["ln_final.hook_out"][0, -1], expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16-eager"])
def test_distances_are_those_of_a_loop_of_two_passes(real: Real, dtype: str) -> None:
    """In eager bfloat16 of the same y, to the bit: only the distance's own sum is rounded. In
    float32 sums go in any order.
    """
    lengths = [1, 5, 12]
    found = ost.collapse(real.model, "figure-5a", lengths=lengths, dtypes=[dtype])
    plain, task = (
        real.plain(getattr(torch, dtype.removesuffix("-eager"))),
        ost.tasks.FIGURE_5["figure-5a"](),
    )
    for length in lengths:
        ids = ost.encode(real.model, task.text(length)).ids
        y, y_more = (_last(plain, part) for part in (ids, torch.cat([ids, ids[-1:]])))
        rows: Any = found.frame.query(
            "length == @length and site == 'y' and norm == 'l2' and per == 'vector'"
        )
        expected = float((y.double() - y_more.double()).norm())
        within = 1e-6 * float(y.norm()) if dtype == "float32" else 1e-6 * expected
        assert rows["mean"].tolist() == pytest.approx([expected], abs=within)


def _last(plain: Any, ids: Tensor) -> Tensor:
    """y of the last token, [d_model], in one pass of transformers alone."""
    with torch.no_grad():
        return plain.model(ids[None], use_cache=False).last_hidden_state[0, -1]


def test_norms_are_those_of_plain_autograd_and_no_bound_is_below(real: Real) -> None:
    """Of the logit of the likeliest token, in float64: one row of the Jacobian behind the output
    layer, in every layer.
    """
    ids = ost.encode(real.model, TEXT).ids[:6]
    prompt = ost.Prompt.from_ids(real.model, ids.tolist())
    logit = int(real.model(ids[None])[0, -1].argmax())
    measured = ost.sensitivity(real.model, prompt, logit=logit)
    plain = real.plain(torch.float64)
    embedded = plain.get_input_embeddings()(ids)[None].requires_grad_(True)
    plain(inputs_embeds=embedded, use_cache=False).logits[0, -1, logit].backward()
    full: Any = measured.frame.query("linearisation == 'full'")
    assert full["frobenius_norm"].tolist() == pytest.approx(
        embedded.grad[0].norm(dim=-1).tolist(), rel=WITHIN
    )
    summary: Any = ost.compare(measured, ost.bounds(real.model, prompt, variants="local")).summary
    assert summary["holds"].tolist() == [True]


def test_a_report_names_the_file_and_decides_what_the_measurements_decide(
    real: Real, tmp_path: Path
) -> None:
    lengths, sections = [1, 2, 4, 8, 16, 32], ["collapse"]
    out = ost.report(real.model, lengths=lengths, sections=sections, out=tmp_path / "real.html")
    page = out.read_text("utf-8")
    title, state = {
        "smollm2-135m-instruct": ("SmolLM2 135M Instruct, Q4_1", "not found"),
        "gemma-3-270m": ("Gemma 3 270M, Q4_K_M", "found"),
    }[real.name]
    assert ost.models.describe(real.model).title == title
    assert f"<h1>{title}</h1>" in page
    # Gemma's pair of ones is hidden until the prompt outgrows the window; of six lengths alone no
    # range could be seen.
    states = re.findall(r'<dt><a href="#collapse">[^<]*</a></dt><dd class="\w+">([^<]*)</dd>', page)
    assert states == [state]


def test_digits_are_tokens_of_their_own_and_blanks_before_them_stay_together(real: Real) -> None:
    """As both models were trained; transformers' reader alone does not know how SmolLM2's tokenizer
    cuts.
    """
    blank, lines = {
        "smollm2-135m-instruct": ("\u0120", "\u010a\u010a"),
        "gemma-3-270m": ("\u2581", "\n\n"),
    }[real.name]
    tokens = real.model.tokenizer.tokenize("a  12\n\n3 b")
    assert tokens == ["a", blank * 2, "1", "2", lines, "3", f"{blank}b"]


IDS: dict[str, dict[str, str]] = {
    "gemma-3-270m": {
        "  a": "2 138 236746",
        "a  b   c": "2 236746 138 236763 139 236755",
        "Hello, world!": "2 9259 236764 1902 236888",
        "\t\ttabs\t": "2 255969 39218 255968",
        "안녕하세요 세계": "2 61659 67195",
        "مرحبا بالعالم": "2 236873 150345 107602 17193",
        "Привет, мир!": "2 116130 236764 58562 236888",
        "<bos>x<eos>": "2 2 236781 1",
        "½ ² ³ Ⅻ ٣ ४ ①": "2 238612 145191 156370 236743 464 371 409 223766 65979 85761",
        "x y z​q": "2 236781 432 398 236762 464 366 369 236802 237141 236809",
        "HTML <b>bold</b> <table> &amp;": "2 8185 236743 200 15640 209 236743 168 833 1414 236793",
        "﻿BOM": "2 237922 236799 4206",
    },
    "smollm2-135m-instruct": {
        "  a": "216 253",
        "a  b   c": "81 216 278 256 265",
        "Hello, world!": "19556 28 905 17",
        "\t\ttabs\t": "197 197 100 7366 197",
        "안녕하세요 세계": "183 239 226 182 223 239 33085 242 183 222 133 183 244 238 18601 222 133 181 128 222",
        "مرحبا بالعالم": "21706 20602 44626 31462 10805 45726 22208 34966 22208 21706",
        "Привет, мир!": "155 249 46879 16464 32547 28 41337 7872 9175 17",
        "<bos>x<eos>": "44 34761 46 104 44 85 395 46",
        "½ ² ³ Ⅻ ٣ ४ ①": "16738 216 19133 216 39050 216 173 223 121 216 164 113 216 9310 120 216 173 235 250",
        "x y z​q": "104 15442 105 321 221 106 321 229 97",
        "HTML <b>bold</b> <table> &amp;": "27769 2067 82 46 30471 9617 82 46 2067 6413 46 1456 1613 43",
        "﻿BOM": "186 136 140 50 9232",
    },
    "qwen2.5-coder-1.5b-instruct": {
        "  a": "220 264",
        "a  b   c": "64 220 293 256 272",
        "Hello, world!": "9707 11 1879 0",
        "\t\ttabs\t": "197 3244 3435 197",
        "안녕하세요 세계": "126246 144370 91145 133196",
        "مرحبا بالعالم": "124122 29825 124671 124476 129634",
        "Привет, мир!": "53645 26991 8178 11 137144 0",
        "<bos>x<eos>": "33177 436 28257 27 84399 29",
        "½ ² ³ Ⅻ ٣ ४ ①": "26062 220 29456 220 43201 220 70467 104 220 149 96 220 12619 103 220 48312 254",
        "x y z​q": "87 4102 88 378 225 89 15692 80",
        "HTML <b>bold</b> <table> &amp;": "5835 366 65 29 14824 522 65 29 366 2005 29 609 1121 26",
        "﻿BOM": "3225 33 1898",
    },
}
"""As llama.cpp cuts them (xllamacpp 2026.10.11549, `parse_special`, BOS where the file says so)."""


@pytest.mark.parametrize("name", IDS)
def test_texts_become_the_ids_that_llama_cpp_gives(name: str, tmp_path: Path) -> None:
    if not is_installed(name):
        pytest.skip(f"needs {name}: {PACKAGED_MODELS[name].install}")
    tokenizer = read_gguf_tokenizer(read_header(joined(name, tmp_path)), name)
    assert {text: " ".join(map(str, tokenizer(text).input_ids)) for text in IDS[name]} == IDS[name]


NAME = "qwen2.5-coder-1.5b-instruct"
PLACES = {
    "output.weight": "lm_head.weight",
    "blk.0.attn_q.bias": "model.layers.0.self_attn.q_proj.bias",
    "blk.13.attn_v.weight": "model.layers.13.self_attn.v_proj.weight",
    "blk.27.ffn_down.weight": "model.layers.27.mlp.down_proj.weight",
}


@pytest.fixture(scope="module")
def qwen() -> TransformerBridge:
    if not is_installed(NAME):
        pytest.skip(
            f"needs {NAME}: {PACKAGED_MODELS[NAME].install}, or {PACKAGED_MODELS[NAME].make}"
        )
    return load_model(NAME, dtype="bfloat16", device="cpu")


def test_it_loads_by_name_and_says_what_it_is(qwen: TransformerBridge) -> None:
    described = describe(qwen)
    assert described.title == "Qwen2.5-Coder 1.5B Instruct, Q4_K_M"
    assert str(described.quantisation).startswith(
        "Q4_K_M, dequantised to bfloat16 from qwen2.5-coder-1.5b-instruct-q4_k_m"
    )
    assert (described.dtype, described.n_parameters) == ("bfloat16", 1_777_088_000)
    assert qwen.tokenizer.tokenize("1234") == ["1", "2", "3", "4"]
    ids = encode(qwen, "The capital of France is Paris. The capital of Italy is").ids
    assert qwen.tokenizer.decode(qwen(ids[None])[0, -1].argmax()) == " Rome"


def test_its_weights_are_those_of_the_file_as_the_package_gguf_dequantises_them(
    qwen: TransformerBridge, tmp_path: Path
) -> None:
    from gguf import GGUFReader, dequantize

    weights, reader = dict(named_weights(qwen)), GGUFReader(joined(NAME, tmp_path))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, place in PLACES.items():
        numbers = dequantize(tensors[name].data, tensors[name].tensor_type)
        assert torch.equal(weights[place], torch.from_numpy(np.array(numbers)).bfloat16())
