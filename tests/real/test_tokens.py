"""The tokenizers of the three real files give the ids that llama.cpp gives; no weights are read."""

from pathlib import Path

import pytest

from ostools.models.files.gguf_tokenizer import read_gguf_tokenizer, read_header
from ostools.models.files.sources import PACKAGED_MODELS, is_installed
from tests.real.conftest import joined

pytestmark = pytest.mark.slow

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
