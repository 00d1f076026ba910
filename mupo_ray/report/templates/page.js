// The page is whole without it. It makes each map one stop of the tab key, with arrow keys between
// its marks; keeps the page in place when a mark is tapped; and lights a response's mark and back.
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
