"""Style and script of a report's page; neither needs anything from outside the file."""

from __future__ import annotations

# Series s0.. tell runs apart, t0.. the stages of a step, g0.. the groups of a cohort; each set
# is told apart by people with the common kinds of colour blindness, in either scheme.
CSS = """
:root { color-scheme: light dark;
  --paper: #fcfcfa; --card: #ffffff; --ink: #1d2329; --muted: #68727d; --grid: #e4e7ea;
  --good: #1b7a46; --bad: #b3402e; --link: #1f5fa8;
  --s0: #1f6fbf; --s1: #d2601a; --s2: #1d8a5b; --s3: #8a4fc0; --s4: #a8842c; --s5: #c23b78;
  --t0: #3b7dc4; --t1: #e08a3c; --t2: #58a978; --t3: #b9a23a; --t4: #c76a9a; --t5: #7d6bc4;
  --t6: #a3abb3;
  --g0: #0b766c; --g1: #a8327e; --g2: #8a6400; --g3: #4553c9; --g4: #83482a; --g5: #56636d; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14181c; --card: #1c2227; --ink: #e6e9ec; --muted: #9aa5af; --grid: #313940;
  --good: #62c78f; --bad: #f08a76; --link: #84b8f0;
  --s0: #62a8ee; --s1: #f2924f; --s2: #5cc795; --s3: #bd92ea; --s4: #d9b960; --s5: #ee83b3;
  --t0: #5b9be0; --t1: #e39a55; --t2: #69b98a; --t3: #c9b24d; --t4: #d580aa; --t5: #9a8ade;
  --t6: #7c858d;
  --g0: #4fd0c0; --g1: #f08ccb; --g2: #e0b64a; --g3: #9aa8ff; --g4: #dc9d78; --g5: #a9b6c0; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 3.2rem; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main, header { max-width: 1180px; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 1.6rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .4rem; }
h3 { font-size: 1.05rem; margin: 1.4rem 0 .4rem; }
h5 { font-size: .92rem; margin: .9rem 0 .2rem; }
p { margin: .3rem 0 .6rem; } .intro, figcaption, .hint { color: var(--muted); }
.intro, .hint { max-width: 52rem; }
a { color: var(--link); }
nav { font-size: .92rem; } nav a { margin-right: 1rem; white-space: nowrap; }
.legend { position: sticky; top: 0; z-index: 2; background: var(--paper);
  border-bottom: 1px solid var(--grid); }
.legend ul, .stages { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem;
  max-width: 1180px; margin: 0 auto; padding: .5rem 1rem; font-size: .92rem; }
.stages { padding: .3rem 0; }
.legend svg { width: 34px; height: 10px; margin-right: .4rem; vertical-align: middle; }
.stages i { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem;
  border-radius: 2px; vertical-align: -1px; }
.plots { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); }
figure { margin: 0; padding: .7rem .8rem; background: var(--card); border: 1px solid var(--grid);
  border-radius: 8px; min-width: 0; }
figure h3 { margin: 0 0 .3rem; font-size: .98rem; }
figure svg { display: block; width: 100%; height: auto; }
figure svg * { stroke-linejoin: round; }
figcaption { font-size: .82rem; line-height: 1.4; margin-top: .3rem; }
.scroll { overflow-x: auto; } .scroll figure { min-width: 640px; }
table { border-collapse: collapse; font-size: .92rem; background: var(--card);
  border: 1px solid var(--grid); }
th, td { padding: .35rem .7rem; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--grid); font-variant-numeric: tabular-nums; }
th { font-weight: 600; } thead th { white-space: nowrap; }
tbody th, thead th:first-child { text-align: left; font-weight: 400; }
tbody th { max-width: 26rem; }
tbody th small, td small { display: block; color: var(--muted); font-size: .8rem; }
td small { white-space: nowrap; }
table.words td { text-align: left; overflow-wrap: anywhere; }
details { margin: .6rem 0; } summary { cursor: pointer; padding: .25rem 0; }
.cohort { background: var(--card); border: 1px solid var(--grid); border-radius: 8px;
  padding: .8rem; margin: .7rem 0; }
.ask { display: flex; flex-wrap: wrap; gap: .9rem; align-items: flex-start; }
.ask > div:last-child { flex: 1 1 14rem; }
.ask img { max-width: 100%; width: 168px; image-rendering: auto; background: #fff;
  border: 1px solid var(--grid); border-radius: 4px; }
.question { font-weight: 600; white-space: pre-wrap; overflow-wrap: anywhere; }
.nopicture { width: 168px; padding: 1.5rem .5rem; font-size: .82rem; text-align: center;
  color: var(--muted); border: 1px dashed var(--muted); border-radius: 4px; }
.responses { list-style: none; margin: 0; padding: 0; }
.responses li { display: grid; grid-template-columns: 5.2rem 1fr; gap: .2rem .6rem;
  border-left: 3px solid var(--bad); padding: .25rem .6rem; margin: .35rem 0; }
.responses li.right { border-color: var(--good); }
.responses li > div { min-width: 0; }
.verdict { color: var(--bad); font-size: .86rem; line-height: 1.7; }
.right .verdict { color: var(--good); }
.text { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .9rem;
  max-height: 16rem; overflow-y: auto;
  font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.notes { margin: .1rem 0 0; color: var(--muted); font-size: .82rem; }
details.long { margin: 0; } details.long > summary { max-height: none; padding: 0; }
details.long[open] > summary { white-space: nowrap; overflow: hidden; text-overflow: ellipsis;
  color: var(--muted); }
.small { font-size: .82rem; } .why { color: var(--muted); font-size: .86rem; }
h4 { font-size: .95rem; margin: 0 0 .35rem; }
.tables { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
.tables > div { max-width: 100%; } .tables tbody th { max-width: 13.5rem; }
.tables th, .tables td { padding: .3rem .6rem; }
.bar { display: block; height: 4px; margin-top: .2rem; background: var(--grid); }
.bar, .bar i { border-radius: 2px; } .bar i { display: block; height: 100%; }
.tables thead th:first-child { font-weight: 600; }
.g0 { --g: var(--g0); } .g1 { --g: var(--g1); } .g2 { --g: var(--g2); }
.g3 { --g: var(--g3); } .g4 { --g: var(--g4); } .g5 { --g: var(--g5); }
.up { color: var(--good); } .down { color: var(--bad); }
.swatch { display: inline-block; width: .75rem; height: .75rem; border-radius: 50%;
  background: var(--g); margin-right: .4rem; vertical-align: -1px; }
.maps { display: grid; gap: 1rem; margin: .9rem 0 .4rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 270px), 1fr)); }
.maps figure { max-width: 460px; background: var(--paper); }
.map { padding-bottom: 6.6rem; }
.field { position: relative; aspect-ratio: 100 / 72; border-radius: 6px; background: var(--card);
  box-shadow: inset 0 0 0 1px var(--grid); }
.field > svg { position: absolute; inset: 0; width: 100%; height: 100%; }
.field line { stroke: var(--g); stroke-width: .35; opacity: .45; }
.pt { position: absolute; width: .86rem; height: .86rem; margin: -.43rem 0 0 -.43rem;
  background: var(--g); border: 2px solid var(--g); border-radius: 50%; }
.pt.wrong { background: var(--card); border-radius: 2px; transform: rotate(45deg) scale(.82); }
.pt.wrong::before { content: ""; position: absolute; inset: 0; background: var(--g); opacity: .2; }
.pt:hover, .pt:focus, .pt.lit { z-index: 2; outline: 2.5px solid var(--ink); outline-offset: 2px; }
.name { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.tip, .rest { position: absolute; top: calc(100% + .5rem); left: 0; right: 0; height: 6.1rem;
  margin: 0; overflow: hidden; font-size: .84rem; line-height: 1.42; overflow-wrap: anywhere; }
.tip { display: none; z-index: 1; padding: .3rem .6rem; background: var(--paper);
  border-left: 3px solid var(--g); white-space: pre-wrap; }
.tip b { display: block; color: var(--g); }
.rest { color: var(--muted); }
.pt:focus + .tip { display: block; z-index: 1; }
.pt:hover + .tip { display: block; z-index: 2; }
.key { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: .3rem 0;
  padding: 0; font-size: .88rem; color: var(--muted); }
.key .pt { position: relative; display: inline-block; margin: 0 .45rem 0 .1rem;
  vertical-align: -2px; }
.responses li:target, .responses li.lit { outline: 2px solid var(--link); }
.problem > details { border-top: 1px solid var(--grid);
  margin: .5rem 0 0; padding-top: .3rem; }
.problem > details > summary { font-weight: 600; font-size: .94rem; }
.beside { display: grid; gap: 0 1.4rem; grid-template-columns: minmax(0, 25rem) minmax(0, 1fr); }
.beside > details { margin-top: .6rem; }
.beside > div { position: sticky; top: 3rem; align-self: start; }
@media (max-width: 800px) { .beside { grid-template-columns: minmax(0, 1fr); }
  .beside > div { position: static; } }
.sides { display: grid; gap: 0 1.2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); }
a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 2px solid var(--link);
  outline-offset: 2px; }
footer { color: var(--muted); font-size: .85rem; margin: 3rem 0 2rem; }
@media (max-width: 560px) {
  .tables tbody th { max-width: 8.2rem; }
  .responses li { grid-template-columns: 1fr; }
  th, td { padding: .3rem .4rem; } table { font-size: .85rem; }
  tbody th { max-width: 8.2rem; min-width: 5.6rem; overflow-wrap: anywhere; }
  tbody th small, td small { font-size: .68rem; }
  h1 { font-size: 1.4rem; } }
@media print { .legend { position: static; } }
"""

# The page is whole without it. It makes each map one stop of the tab key, with arrow keys between
# its marks; keeps the page in place when a mark is tapped; and lights a response's mark and back.
SCRIPT = """
'use strict';
for (const field of document.querySelectorAll('.field')) {
  const marks = [...field.querySelectorAll('.pt')];
  const go = mark => {
    for (const other of marks) other.tabIndex = other === mark ? 0 : -1;
    mark.focus({preventScroll: true});
  };
  marks.forEach((mark, i) => {
    mark.tabIndex = i ? -1 : 0;
    const item = document.getElementById(mark.hash.slice(1));
    mark.addEventListener('click', event => { event.preventDefault(); go(mark); });
    mark.addEventListener('keydown', event => {
      const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
      if (step) { event.preventDefault(); go(marks[(i + step + marks.length) % marks.length]); }
      if (event.key === 'Enter') { event.preventDefault(); location.hash = mark.hash; }
    });
    if (!item) return;
    const light = on => () => { mark.classList.toggle('lit', on); };
    item.addEventListener('pointerenter', light(true));
    item.addEventListener('pointerleave', light(false));
    const answer = on => () => { item.classList.toggle('lit', on); };
    for (const [name, on] of [['focus', true], ['blur', false], ['pointerenter', true],
                              ['pointerleave', false]]) mark.addEventListener(name, answer(on));
  });
}
"""
