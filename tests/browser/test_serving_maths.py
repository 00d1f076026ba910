"""How the page of a served model sets mathematics: what of LaTeX, and where a text holds some."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from answers_server import Script, answers_server

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
CARRIED = """async source => {
  const {renderMath} = await import(new URL('page/math.js', location).href);
  const nodes = [...renderMath(source, true).querySelectorAll('*')];
  return {
    kinds: nodes.map(node => node.localName),
    attributes: nodes.flatMap(node => node.getAttributeNames()),
    sizes: nodes.flatMap(node => ['width', 'height'].map(name => node.getAttribute(name)))
      .filter(size => size?.endsWith('em')).map(size => parseFloat(size)),
  }; }"""
PARTS = f"async text => {{ {SHOW} return (await load('text')).parts(text); }}"
ANSWER = f"""async text => {{ {SHOW}
  const found = (await load('text')).renderedAnswer(text);
  return found.nodeType === Node.TEXT_NODE ? found.data : `${{found.localName}} ${{
    found.localName === 'math' ? show(found.firstElementChild) : found.textContent}}`; }}"""
ALIGNED = "mtable(mtr(mtd(a) mtd(mrow(= b))))"
# Answers of such kinds are set; whether well, people have to see.
TYPICAL = r"""
\frac{-b \pm \sqrt{b^2-4ac}}{2a}
\begin{bmatrix} a \\ b \end{bmatrix}
\begin{vmatrix} a & b \\ c & d \end{vmatrix} = ad - bc
f(x) = \begin{cases} x^2 & \text{if } x > 0 \\ 0 & \text{otherwise} \end{cases}
\begin{array}{c|c} x & y \\ \hline 1 & 2 \end{array}
\begin{align*} x + y &= 3 \\ x - y &= 1 \end{align*}
\lim_{x \to 0} \frac{\sin x}{x} = 1
\iint_D f \, dA + \int_0^1 x^2 \, dx
\sum_{k=0}^\infty \frac{x^k}{k!}
\Delta ABC \sim \Delta DEF, \varphi = \frac{1+\sqrt5}{2}
A \xrightarrow{f} B \Rightarrow C \mapsto D
\{x \in \mathbb{R} \mid x > 0\} \cup [5, \infty)
\widehat{ABC} = \overset{\frown}{AB}, \overrightarrow{CD}
a \equiv b \pmod{n}, \underbrace{1 + \cdots + 1}_{n}
\left\lfloor \frac{n}{2} \right\rfloor + \bigl( x + \tfrac{1}{2} \bigr)^2
\textbf{(B)}\ 12, \cancel{x}, \text{\$5}
5 \, \mathrm{m/s^2}, 100 \mathrm{~km} / \mathrm{h}, 3{,}600
\stackrel{?}{=} \color{red}{x}
"""


@pytest.fixture(scope="module")
def page(browser) -> Iterator:
    """The page, whose modules are called from within."""
    with answers_server(Script()) as address:
        context = browser.new_context()
        found = context.new_page()
        found.goto(address)
        yield found
        context.close()


@pytest.mark.parametrize(
    ("source", "tree"),
    [
        (r"\frac{1}{2}", "mfrac(1 2)"),
        (r"\frac12", "mfrac(1 2)"),
        (r"\dfrac{a+b}{c}", "mstyle(mfrac(mrow(a + b) c))"),
        (r"x_i^{10}", "msubsup(x i 10)"),
        (r"x^12", "mrow(msup(x 1) 2)"),
        (r"\sqrt{2}", "msqrt(2)"),
        (r"\sqrt[3]{x+1}", "mroot(mrow(x + 1) 3)"),
        (r"-2\times 3 \cdot \pi", "mrow(\u2212 2 \u00d7 3 \u22c5 \u03c0)"),
        (r"\angle ABC = 70^\circ", "mrow(\u2220 A B C = 70 \u00b0)"),
        (r"70^{\circ}", "mrow(70 \u00b0)"),
        (r"f \circ g", "mrow(f \u2218 g)"),
        (r"\left(\frac{a}{b}\right]", "mrow(( mfrac(a b) ])"),
        (r"\left. x \right|_0", "msub(mrow( x |) 0)"),
        (r"\boxed{\pi r^2}", "mrow(mrow(\u03c0 msup(r 2)))"),
        (r"12\text{ cm}^2", "mrow(12 msup(\u00a0cm 2))"),
        (r"f'(x)", "mrow(msup(f \u2032) mrow(( x )))"),
        (r"\sin^2 x + \cos(x)", "mrow(msup(sin 2) \u2061 _ x + mrow(cos \u2061) mrow(( x )))"),
        (r"2\sin x", "mrow(2 mrow(_ sin \u2061 _) x)"),
        (r"\sum_{i=1}^{n} i", "mrow(msubsup(\u2211 mrow(i = 1) n) i)"),
        (r"1,234.5, 6", "mrow(1,234.5 , 6)"),
        (r"\overline{AB} \parallel \vec{v}", "mrow(menclose(mrow(A B)) \u2225 mover(v \u2192))"),
        (r"\mathbb{R} \setminus \{0\}", "mrow(\u211d \u2216 mrow({ 0 }))"),
        (r"50\%, 50%", "mrow(50 % , 50 %)"),
        (r"\binom{n}{k}", "mrow(( mfrac(n k) ))"),
        ("a<b>c", "mrow(a < b > c)"),
        (r"\begin{cases} 1 \\ 2 \end{cases}", "mrow({ mtable(mtr(mtd(1)) mtr(mtd(2))) )"),
        (r"\begin{pmatrix} a & b \end{pmatrix}", "mrow(( mtable(mtr(mtd(a) mtd(b))) ))"),
        (r"\begin{aligned} a &= b \end{aligned}", "mtable(mtr(mtd(a) mtd(mrow(= b))))"),
        (r"\operatorname{lcm}(4, 6)", "mrow(lcm \u2061 mrow(( 4 , 6 )))"),
        (r"\mathcal{O}(n)", "mrow(\U0001d4aa mrow(( n )))"),
    ],
)
def test_what_answers_usually_hold(page, source: str, tree: str) -> None:
    assert page.evaluate(MATHS, source) == tree


@pytest.mark.parametrize("source", TYPICAL.strip().splitlines())
def test_typical_answers_are_set(page, source: str) -> None:
    assert page.evaluate(MATHS, source)


@pytest.mark.parametrize(
    "source",
    [
        *(r"\foo", r"\begin{foo} 1 \end{foo}", "{", "}", "x^", "x^1^2", "a & b", "$", "#"),
        *(r"\left( 1", r"\left( 1 )", r"\frac{1}", r"\sqrt[3", r"\text{a", r"\text{\foo}", "\\"),
        *(
            r"\constructor",
            r"\left\constructor 1 \right)",
            r"\begin{constructor}1\end{constructor}",
        ),
        *("{" * 100 + "}" * 100, "x^{" * 100, r"\frac" * 500, "x" * 3000),
        *("x^{" * 100 + "x" + "}" * 100, r"\sqrt{" * 90 + "x" + "}" * 90),
    ],
)
def test_anything_else_is_left_alone(page, source: str) -> None:
    assert page.evaluate(MATHS, source) is None


@pytest.mark.parametrize(
    "source",
    [
        *(
            r"\href{javascript:alert(1)}{x}",
            r"\url{http://127.0.0.1:9}",
            r"\ref{x}",
            r"x \eqref{x}",
        ),
        *(r"\includegraphics{http://127.0.0.1:9/x.png}", r"\class{lit}{x}", r"\id{out}{x}"),
        *(r"\style{position:fixed}{x}", r"\data{a=b}{x}", r"\colorbox{url(http://127.0.0.1:9)}{x}"),
        *(r"\def\a{x}\a", r"\gdef\a{x} x", r"\newcommand{\a}{x}\a", r"\let\a=x \a"),
    ],
)
def test_nothing_loads_links_names_or_defines(page, source: str) -> None:
    assert page.evaluate(MATHS, source) is None


@pytest.mark.parametrize(
    "source",
    [r"\text{<img src=x onerror=a()>}", r"\label{out} x", r"x \tag{1}", r"\rule{999em}{999em} x"],
)
def test_what_is_set_has_no_name_no_address_and_an_end(page, source: str) -> None:
    carried = page.evaluate(CARRIED, source)
    assert not {"img", "a", "script"} & set(carried["kinds"])
    assert not {"id", "href", "src", "name", "onerror"} & set(carried["attributes"])
    assert all(size <= 10 for size in carried["sizes"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"so $x$, \(y\)", ["so ", {"maths": "x"}, ", ", {"maths": "y"}]),
        ("then\n$$z$$\nand", ["then", {"maths": "z"}, "and"]),
        ("\\[w\\] on", [{"maths": "w"}, " on"]),
        ("costs $5 and $7", ["costs $5 and $7"]),
        ("an $unclosed one", ["an $unclosed one"]),
        (r"$a \$ b$", [{"maths": "mrow(a $ b)"}]),
        (r"half, \frac{1}{2} of", ["half, ", {"maths": "mfrac(1 2)"}, " of"]),
        (r"turn 30^\circ left", ["turn ", {"maths": "mrow(30 \u00b0)"}, " left"]),
        (r"\boxed{ 5 } it is", [{"maths": "mrow(5)"}, " it is"]),
        (r"\begin{pmatrix}1\end{pmatrix} is", [{"maths": "mrow(( mtable(mtr(mtd(1))) ))"}, " is"]),
        (r"\left(\frac12\right)^2 is", [{"maths": "msup(mrow(( mfrac(1 2) )) 2)"}, " is"]),
        (r"so \sum_{i=1}^{n} i, on", ["so ", {"maths": "msubsup(\u2211 mrow(i = 1) n)"}, " i, on"]),
        ("then\n\\begin{align*}a &= b\\end{align*}\nend", ["then", {"maths": ALIGNED}, "end"]),
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
        (r"\begin{pmatrix}1\end{pmatrix}", "math mrow(( mtable(mtr(mtd(1))) ))"),
        (r"\begin{foo}1\end{foo}", r"code \begin{foo}1\end{foo}"),
        ("<b>bold</b>", "<b>bold</b>"),
    ],
)
def test_answers_need_no_dollars(page, answer: str, shown: str) -> None:
    assert page.evaluate(ANSWER, answer).strip() == shown


def test_hostile_texts_take_no_time(page) -> None:
    began = time.monotonic()
    for text in (
        *("$" * 20_000, "\\frac{" * 5_000, "$x " * 8_000, "\\(" * 10_000, "{" * 40_000),
        *("\\left(" * 5_000, "\\begin{a}" * 5_000, "\\sqrt" * 5_000, "\\frac{1}" * 5_000),
        "$\\def\\a{" + "x" * 1500 + "}\\def\\b{" + "\\a" * 10 + "}" + "\\b" * 20 + "$",
        r"$\begin{matrix}" + "&" * 1900 + r"\end{matrix}$",
        "$" + r"\pmod{" * 200 + "x" + "}" * 200 + "$",
    ):
        page.evaluate(TEXT, text)
    assert time.monotonic() - began < 5.0
