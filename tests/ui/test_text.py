"""What models, tools and terminals say is shown whole, and does nothing: Markdown, code, colours, marks."""

from __future__ import annotations

import re
import time
import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from osmosis_ai.ui.pages import templates
from osmosis_ai.ui.text import ansi, code, markdown, plain, visible, without_sequences

HOSTILE = [
    *("<script>alert(1)</script>", "</script></code></pre><script>", "[a](javascript:alert(1))"),
    *('![x](https://elsewhere.example/p.png "onerror=alert(1)")', "<https://elsewhere.example>"),
    *("<img src=x onerror=alert(1)>", "{{ 7 * 7 }} {% raw %} ${x} <%= y %>", "<svg/onload=alert(1)>"),
    *("<style>body{display:none}</style>", '```html" onclick="alert(1)\n<b style="color:red">\n```'),
    "|a|\n|:-:|\n|<b>|",
    "\x1b]0;title\x07\x1b]8;;https://elsewhere.example\x1b\\link\x1b]8;;\x1b\\\x1b[2J\x1bc",
    *("a\u202eb\u200b\x00\x9b31m\ud800", "&#x202e;&lt;script&gt;&copy;"),
    *("[a]: https://elsewhere.example\n[a]", "# one\n\n3. two\n\n> three\n\n- [ ] four"),
]
ELEMENTS = {
    *("p", "em", "strong", "s", "del", "code", "pre", "ul", "ol", "li", "blockquote", "hr", "br"),
    *("table", "thead", "tbody", "tr", "th", "td", "span", "div", "button", "h4", "h5", "h6"),
}
ATTRIBUTES = {"class", "type", "hidden", "scope", "start"}


PAGES = templates()


class Reader(HTMLParser):
    """Read HTML as a browser does: its text, without buttons, and all its elements and attributes."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self._in_button = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self._in_button += tag == "button"

    def handle_endtag(self, tag: str) -> None:
        self._in_button -= tag == "button"

    def handle_data(self, data: str) -> None:
        self.text += "" if self._in_button else data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def read(html: str) -> Reader:
    reader = Reader()
    # A plain string: the parser takes pieces of it, and those of Markup would be escaped again.
    reader.feed(str(html))
    reader.close()
    return reader


# What means something to one of the readers comes often.
texts = st.text(
    st.one_of(
        st.sampled_from("<>&\"'`*_[]()!#~|:-\\\n\t {}\x1b\x9b;m1"), st.characters(exclude_categories=())
    )
)


@given(texts)
@example("\x1b[31mred\x1b[0m")
def test_text_of_a_terminal_is_on_the_page_without_its_sequences(text: str) -> None:
    page = read(ansi(text))
    left, removed = without_sequences(text)
    told = page.text.removesuffix(
        f"{removed} terminal sequence{'s' * (removed != 1)} removed" if removed else ""
    )
    assert told == visible(left) == plain(text)
    assert page.elements <= {"span"} and page.attributes <= {"class"}


@pytest.mark.parametrize(
    "piece", ["\x9d1;", "\x90q", "\x9b1", "\x9d1;\x90q", "\x1b]", "\x1b[1", "\x9b" + "1" * 999]
)
def test_beginnings_of_sequences_that_nobody_ends_take_no_time(piece: str) -> None:
    began = time.process_time()
    without_sequences(piece * (1_000_000 // len(piece)))
    assert time.process_time() - began < 5


@given(texts)
def test_a_template_shows_any_text_as_it_is_and_marks_what_is_not_seen(text: str) -> None:
    page = read(PAGES.from_string('<p title="{{ said }}">{{ said }}</p>').render(said=text))
    assert page.text == visible(text)
    assert page.elements == {"p"} and page.attributes == {"title"}


@given(texts, st.sampled_from(["", "json", "python", "html", "bash", "diff", "traceback", "nothing"]))
def test_code_is_on_the_page_as_it_is(text: str, language: str) -> None:
    page = read(code(text, language))
    assert page.text == visible(text)
    assert page.elements <= {"span"} and page.attributes <= {"class"}


@given(texts)
def test_markdown_makes_only_elements_of_text(text: str) -> None:
    page = read(markdown(text))
    assert page.elements <= ELEMENTS and page.attributes <= ATTRIBUTES
    assert page.text == visible(page.text)


@given(st.lists(st.text('ab*_`[]()!#>~:-\\<&;" \n', max_size=12), max_size=12).map("".join))
@example("[a]: b")
@example("&copy; &#65;")
@example('[x](y "z")')
@example("> " * 30 + "deep")
@example("```aaa\nb")
def test_no_word_gets_lost_in_markdown(text: str) -> None:
    letters = re.sub("[^ab]", "", text)
    shown = re.sub(r"\[image: ", "", read(markdown(text)).text)
    assert re.sub("[^ab]", "", shown) == letters


@pytest.mark.parametrize("said", HOSTILE)
def test_hostile_text_does_nothing(said: str) -> None:
    for page in (read(markdown(said)), read(ansi(said)), read(code(said, "html"))):
        assert page.elements <= ELEMENTS and page.attributes <= ATTRIBUTES
        assert page.text == visible(page.text)


def test_links_and_images_are_text_with_their_address() -> None:
    page = read(markdown('[here](javascript:alert(1)) ![x](https://elsewhere.example/p.png "t")'))
    assert page.text.split() == [
        "here",
        "javascript:alert(1)",
        "[image:",
        "x]",
        "https://elsewhere.example/p.png",
        "(t)",
    ]
    assert "button" in page.elements and not {"a", "img"} & page.elements


@pytest.mark.parametrize("text", ["[" * 60_000, "![" * 30_000, ">" * 60_000, "x" * 70_000, "1. " * 20_000])
def test_what_would_take_long_or_get_lost_is_shown_as_it_was_written(text: str) -> None:
    assert read(markdown(text)).text == text


def test_colours_become_sixteen_classes() -> None:
    assert ansi("\x1b[31mred\x1b[0m plain") == '<span class="ansi-1">red</span> plain'
    assert (
        ansi("\x1b[1;92mok\x1b[22m!")
        == '<span class="ansi-bold ansi-10">ok</span><span class="ansi-10">!</span>'
    )
    assert ansi("\x1b[38;5;9;4mx") == '<span class="ansi-9 ansi-underlined">x</span>'
    assert ansi("\x1b[38;2;250;200;20mx\x1b[39my") == '<span class="ansi-11">x</span>y'
    assert ansi("\x1b[48;2;9;9;9;31mx") == '<span class="ansi-1">x</span>'
    assert ansi("\x1b[38;5;231mx") == '<span class="ansi-15">x</span>'
    found = {
        number for index in range(256) for number in re.findall(r"ansi-(\d+)", ansi(f"\x1b[38;5;{index}mx"))
    }
    assert found == {str(number) for number in range(16)}


def test_what_drives_a_terminal_is_taken_out_and_counted() -> None:
    said = "\x1b]0;title\x07a\x1b[2Jb\x1b]52;c;aGk=\x1b\\c\x9d0;x\x9cd\x1bPq\x1b\\e\x1bcf\x1b]0;never ends\ng"
    assert without_sequences(said) == ("abcdef\ng", 7)
    assert ansi(said).endswith('<span class="removed">7 terminal sequences removed</span>')
    assert plain("\x1b[31ma\x1b\u202e") == "a␛‹U+202E›"


def test_a_sequence_of_eight_bits_is_one_only_where_it_is_whole() -> None:
    assert without_sequences("a\x9b31mb\x9b2Jc\x90qd\x9ce\x9d8;;x\x07f") == ("abcef", 3)
    lone = "a\x9bb\x9dc\x90d\x98e\x9ef\x9f \x9bHome \x9d0;never ends"
    assert without_sequences(lone) == (lone, 0)
    assert plain("\x9b") == "‹U+009B›"


@pytest.mark.parametrize(
    ("language", "piece"), [("yaml", "@"), ("ts", "1."), ("typescript", "1."), ("xml", "<![CDATA[")]
)
def test_no_lexer_is_given_what_takes_it_minutes(language: str, piece: str) -> None:
    began = time.process_time()
    assert "<span" not in code(piece * (99_000 // len(piece)), language)
    assert code(piece * (20_000 // len(piece)), language)
    assert time.process_time() - began < 10


def test_what_is_not_seen_is_shown() -> None:
    assert visible("one\r\ntwo\tthree") == "one\ntwo\tthree"
    assert visible("é 中 😀 \N{HEBREW LETTER ALEF}") == "é 中 😀 \N{HEBREW LETTER ALEF}"
    assert visible("a\u202eb\u200b\x00\x9b\ud800") == "a‹U+202E›b‹U+200B›␀‹U+009B›‹U+D800›"
    for point in [*range(0x11000), *range(0xE0000, 0xE1000)]:
        kind = unicodedata.category(chr(point))
        if kind in ("Cc", "Cs", "Zl", "Zp") and chr(point) not in "\t\n":
            assert visible(chr(point)) != chr(point), hex(point)
        if unicodedata.bidirectional(chr(point)) in [
            *("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")
        ]:
            assert visible(chr(point)) != chr(point), hex(point)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("no attempt got a reward.", "No attempt got a reward."),
        ("lora_targets matches no layer", "lora_targets matches no layer"),
        ("`wandb` failed", "`wandb` failed"),
        ("", ""),
    ],
)
def test_messages_start_with_a_capital_letter(message: str, shown: str) -> None:
    assert templates().from_string("{{ text | sentence }}").render(text=message) == shown
