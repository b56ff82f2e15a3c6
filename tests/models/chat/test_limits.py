"""A chat template is a stranger's program: what makes too much text, does not end, or writes otherwise each time is refused."""

from __future__ import annotations

import resource
import time
from typing import Any

import pytest

from ostools.ground.errors import InputError
from ostools.models import encode
from tests.checkpoints import CHAT_TEMPLATE, tiny_model

_GROWS = "expected a chat template that writes a text about as long as the message"
_TWICE = "{% set ns = namespace(x='aa') %}{% for i in range(60) %}{% set ns.x = ns.x OP ns.x %}{% endfor %}"
BOMBS = {
    "times": "{{ 'a' * 10**9 }}",
    "a method that pads": "{{ 'a'.center(1000000000) }}",
    "a width": "{{ '%1000000000d' % 1 }}",
    "a width behind a name": "{{ '%(a)1000000000d' % {'a': 1} }}",
    "a width that is a text": "{{ '{:{}}'.format('x', '1000000000') }}",
    "a width beside a number": "{{ '%*d' % (1000000000, 1) }}",
    "many widths": "{{ ('{0:99999}' * 20000).format(1) }}",
    "a width in a date": "{{ strftime_now('%999999999d') }}",
    "a text in many places": "{{ ('{0}' * 10000).format('a' * 100000) }}",
    "a list of one text": "{{ ['a' * 1000000] * 5000 }}",
    "a margin": "{{ ('a\\n' * 10000)|indent('x' * 100000) }}",
    "doubled by +": _TWICE.replace("OP", "+"),
    "one text into another": "{{ ('a' * 3000)|replace('a', 'b' * 9000) }}",
    "searches in a loop": "{% set a = 'a' * 1000000 %}{% for i in range(99999) %}{% if 'b' in a %}{% endif %}{% endfor %}",
    "slices in a loop": "{% set a = 'a' * 1000000 %}{% for i in range(99999) %}{% set b = a[1:] %}{% endfor %}",
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a macro that calls itself": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
}


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("gemma", fresh=True)


def _refuses(model: Any, template: str, match: str) -> None:
    model.tokenizer.chat_template = template
    begin, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=match) as caught:
        encode(model, "hello", chat=True)
    assert "\n" not in str(caught.value)
    assert time.process_time() - begin < 20  # it takes under 1: no slow machine is a hang
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.mark.parametrize("case", BOMBS)
def test_a_template_that_makes_too_much(model: Any, case: str) -> None:
    _refuses(model, BOMBS[case] + "{{ messages[0]['content'] }}", _GROWS)


@pytest.mark.parametrize("draw", ["{{ [['a']]|map('random')|join }}", "{{ lipsum(1) }}"])
def test_a_template_that_draws_at_random(model: Any, draw: str) -> None:
    _refuses(
        model,
        "{{ messages[0]['content'] }}" + draw,
        "that writes the same text each time, found one that draws at random",
    )


def test_a_template_that_writes_otherwise_each_time(model: Any) -> None:
    _refuses(model, "{{ messages[0]['content'] }}{{ strftime_now('%f') }}", "that writes the same text each time")


@pytest.mark.parametrize("template", ["{{" + "(" * 50000 + "1" + ")" * 50000 + "}}"])
def test_a_template_that_is_nested_too_deeply(model: Any, template: str) -> None:
    _refuses(model, template, "expected a chat template that can be read, found: maximum recursion")


def test_a_template_as_large_as_no_other(model: Any) -> None:
    _refuses(model, "a" * 2_000_000, "expected a chat template of at most 1048576 characters, found 2000000")


@pytest.mark.parametrize("text", ["100000 {:1000000} %1000000d"])
def test_a_plain_template_writes_what_it_wrote(model: Any, text: str) -> None:
    """The trial changes nothing, and a message is no program: widths in it are text."""
    model.tokenizer.chat_template = CHAT_TEMPLATE.replace(
        "message['content']", "message['content']|trim|replace('\\n', ' ')"
    )
    assert (
        encode(model, text, chat=True).text
        == f"<bos><start_of_turn>user\n{text.strip()}<end_of_turn>\n<start_of_turn>model\n"
    )
