"""How the page of a served model sets mathematics: LaTeX to MathML, and where a text holds some."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from strategy_server import Script, strategy_server

# A tree as text: name(children), a leaf as its text, a space as _.
SHOW = """
const show = node => node.localName === 'mspace' ? '_'
  : node.childElementCount === 0 ? node.textContent
  : `${node.localName}(${[...node.children].map(show).join(' ')})`;
const load = name => import(new URL(`page/${name}.js`, location).href);
"""
MATHS = f"""async source => {{ {SHOW}
  const found = (await load('math')).renderMath(source);
  return found && [...found.children].map(show).join(' '); }}"""
TEXT = f"""async text => {{ {SHOW}
  const found = (await load('text')).rendered(text);
  return [...found.childNodes].map(node => node.nodeType === Node.TEXT_NODE ? node.data
    : node.localName === 'math' ? {{maths: show(node.firstElementChild)}}
    : {{[node.className]: node.textContent}}).filter(part => part !== ''); }}"""
PARTS = f"async text => {{ {SHOW} return (await load('text')).parts(text); }}"
ANSWER = f"""async text => {{ {SHOW}
  const found = (await load('text')).renderedAnswer(text);
  return found.nodeType === Node.TEXT_NODE ? found.data : `${{found.localName}} ${{
    found.localName === 'math' ? show(found.firstElementChild) : found.textContent}}`; }}"""


@pytest.fixture(scope="module")
def page(browser) -> Iterator:
    """The page, whose modules are called from within."""
    with strategy_server(Script()) as address:
        context = browser.new_context()
        found = context.new_page()
        found.goto(address)
        yield found
        context.close()


@pytest.mark.parametrize(
    ("source", "tree"),
    [
        (r"\frac{1}{2}", "mrow(mfrac(1 2))"),
        (r"\frac12", "mrow(mfrac(1 2))"),
        (r"\dfrac{a+b}{c}", "mrow(mfrac(mrow(a + b) c))"),
        (r"x_i^{10}", "mrow(msubsup(x i 10))"),
        (r"x^12", "mrow(msup(x 1) 2)"),
        (r"\sqrt{2}", "mrow(msqrt(2))"),
        (r"\sqrt[3]{x+1}", "mrow(mroot(mrow(x + 1) mrow(3)))"),
        (r"-2\times 3 \cdot \pi", "mrow(\u2212 2 \u00d7 3 \u22c5 \u03c0)"),
        (r"\angle ABC = 70^\circ", "mrow(\u2220 A B C = mrow(70 \u00b0))"),
        (r"70^{\circ}", "mrow(mrow(70 \u00b0))"),
        (r"\left(\frac{a}{b}\right]", "mrow(mrow(( mrow(mfrac(a b)) ]))"),
        (r"\left. x \right|_0", "mrow(msub(mrow(mrow(x) |) 0))"),
        (r"\boxed{\pi r^2}", "mrow(mrow(mrow(\u03c0 msup(r 2))))"),
        (r"12\text{ cm}^2", "mrow(12 msup(\u00a0cm 2))"),
        (r"f'(x)", "mrow(mrow(f \u2032) ( x ))"),
        (r"\sin^2 x + \cos(x)", "mrow(msup(sin 2) _ x + cos ( x ))"),
        (r"2\sin x", "mrow(2 _ sin _ x)"),
        (r"\sum_{i=1}^{n} i", "mrow(munderover(\u2211 mrow(i = 1) n) i)"),
        (r"1,234.5, 6", "mrow(1,234.5 , 6)"),
        (r"\overline{AB} \parallel \vec{v}", "mrow(mrow(mrow(A B)) \u2225 mover(v \u2192))"),
        (r"\mathbb{R} \setminus \{0\}", "mrow(\u211d \u2216 { 0 })"),
        (r"50\%, 50%", "mrow(50 % , 50 %)"),
        (r"\binom{n}{k}", "mrow(mrow(( mfrac(n k) )))"),
        ("a<b>c", "mrow(a < b > c)"),
    ],
)
def test_the_usual_subset(page, source: str, tree: str) -> None:
    assert page.evaluate(MATHS, source) == tree


@pytest.mark.parametrize(
    "source",
    [
        *(r"\foo", r"\begin{cases} 1 \end{cases}", "{", "}", "x^", "x^1^2", "a & b", "$", "#"),
        *(r"\left( 1", r"\left( 1 )", r"\frac{1}", r"\sqrt[3", r"\text{a", r"\text{\foo}", "\\"),
        *(r"\constructor", r"\left\constructor 1 \right)", r"\mathbb{constructor}"),
        *("{" * 100 + "}" * 100, "x^{" * 100, r"\frac" * 500, "x" * 3000),
    ],
)
def test_anything_else_is_left_alone(page, source: str) -> None:
    assert page.evaluate(MATHS, source) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"so $x$, \(y\)", ["so ", {"maths": "mrow(x)"}, ", ", {"maths": "mrow(y)"}]),
        ("then\n$$z$$\nand", ["then", {"maths": "mrow(z)"}, "and"]),
        ("\\[w\\] on", [{"maths": "mrow(w)"}, " on"]),
        ("costs $5 and $7", ["costs $5 and $7"]),
        ("an $unclosed one", ["an $unclosed one"]),
        (r"$a \$ b$", [{"maths": "mrow(a $ b)"}]),
        (r"half, \frac{1}{2} of", ["half, ", {"maths": "mfrac(1 2)"}, " of"]),
        (r"turn 30^\circ left", ["turn ", {"maths": "mrow(mrow(30 \u00b0))"}, " left"]),
        (r"\boxed{ 5 } it is", [{"maths": "mrow(5)"}, " it is"]),
        (r"$\foo{x}$ stays", [{"tex": r"$\foo{x}$"}, " stays"]),
        (r"C:\new \foo", [r"C:\new \foo"]),
        ("a $1\n\n2$ b", ["a $1\n\n2$ b"]),
    ],
)
def test_where_a_text_holds_mathematics(page, text: str, found: list) -> None:
    assert page.evaluate(TEXT, text) == found


@pytest.mark.parametrize(
    ("text", "reasoning", "rest"),
    [
        ("<think>a</think><answer>b</answer>", "a", "b"),
        (" <think> a </think> \\boxed{ 5 }", "a", "\\boxed{ 5 }"),
        ("a </think> b", "a", "b"),
        ("<think>never closed", "never closed", ""),
        ("no tags", "no tags", ""),
        ("< think >a< / think > b </think> c", "a b", "c"),
    ],
)
def test_parts_of_a_text(page, text: str, reasoning: str, rest: str) -> None:
    assert page.evaluate(PARTS, text) == {"reasoning": reasoning, "rest": rest}


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("5", "5"),
        ("-3.5", "\u22123.5"),
        ("Route 66", "Route 66"),
        ("(B)", "(B)"),
        ("x+1", "math mrow(x + 1)"),
        ("1/2", "math mrow(1 / 2)"),
        (r"\frac{1}{2} \text{ cm}", "math mrow(mfrac(1 2) \u00a0cm)"),
        (r"\begin{pmatrix}1\end{pmatrix}", r"code \begin{pmatrix}1\end{pmatrix}"),
        ("<b>bold</b>", "<b>bold</b>"),
    ],
)
def test_answers_need_no_dollars(page, answer: str, shown: str) -> None:
    assert page.evaluate(ANSWER, answer).strip() == shown


def test_hostile_texts_take_no_time(page) -> None:
    began = time.monotonic()
    for text in ("$" * 20_000, "\\frac{" * 5_000, "$x " * 8_000, "\\(" * 10_000, "{" * 40_000):
        page.evaluate(TEXT, text)
    assert time.monotonic() - began < 5.0
